"""The pure part of the kernel: identity, signatures, the fold. No clock, no randomness, no I/O."""
