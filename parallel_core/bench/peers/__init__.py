"""PyTorch's own ways to train in parallel, each set up as in its documentation."""

from __future__ import annotations

from pathlib import Path

from parallel_core.bench.turns import Contestant
from parallel_core.spec import RunSpec


def build(name: str, spec: RunSpec, rank: int, cache: Path) -> Contestant:
    """Returns the contestant `name` of `duel.SPLITS` on this rank."""
    from parallel_core.bench.peers import ddp, fully_shard, pipeline, single, tensor

    makers = {"single": single, "ddp": ddp, "fully_shard": fully_shard, "tensor": tensor, "tensor-wide": tensor}
    return makers.get(name, pipeline).build(spec, rank, cache)
