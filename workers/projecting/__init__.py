"""The parts of a projector: working memory, folding a batch, owning a shard."""
