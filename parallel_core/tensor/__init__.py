"""Tensor parallelism: layers that hold a shard of a full one, and their substitution into a model."""
