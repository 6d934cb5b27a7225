"""A plain PyTorch training loop on one device as contestant."""

from __future__ import annotations

from pathlib import Path

from parallel_core.bench.peers.common import Batches, layers, trained
from parallel_core.bench.turns import Contestant
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    model, batches = layers(spec), Batches(spec, cache)
    return trained(model, batches, spec.train)
