"""Tensor parallelism: layers that hold a share of a full one, and the swap that puts them into a model."""
