"""The kernel of Stepwell: an append-only log of entries, and everything that is derived from it."""
