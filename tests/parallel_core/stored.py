"""The tensors of a checkpoint, put together from its pieces."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from parallel_core.checkpoint import manifest as manifests
from parallel_core.engine import storage
from parallel_core.engine.shares import Box, Share


def tensors(path: Path) -> dict[str, Tensor]:
    """Every full tensor of the checkpoint at `path`, by `<kind>/<name>`."""
    manifest = manifests.read(path)
    out = {name: torch.empty(of.shape, dtype=getattr(torch, of.dtype)) for name, of in manifest.tensors.items()}
    shares = {
        name: Share(tuple(tensor.shape), [(Box((0,) * tensor.dim(), tuple(tensor.shape)), tensor.view(-1))])
        for name, tensor in out.items()
    }
    storage.load(shares, path, manifest)
    return out


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names of tensors that only one has, or whose bits differ."""
    apart = sorted(one.keys() ^ other.keys())
    return apart + [name for name in one.keys() & other.keys() if not _bits_equal(one[name], other[name])]


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))
