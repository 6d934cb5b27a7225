"""torch.nn.parallel.DistributedDataParallel as contestant; its loss is the mean over ranks, as in this engine."""

from __future__ import annotations

from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from parallel_core.bench.peers.common import Batches, layers, trained
from parallel_core.bench.turns import Contestant
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    layout = Layout.of(spec)
    batches = Batches(spec, cache, layout.micro_batches_of(*layout.coords(rank)[:2]))
    model = DistributedDataParallel(layers(spec), gradient_as_bucket_view=True)
    return trained(model, batches, spec.train, layout.dp)
