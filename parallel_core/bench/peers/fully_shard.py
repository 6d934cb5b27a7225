"""torch.distributed.fsdp.fully_shard (FSDP2) as contestant: a group per layer and the rest at the root, as in its
tutorial."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from parallel_core.bench.peers.common import Batches, layers, trained
from parallel_core.bench.turns import Contestant
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    layout = Layout.of(spec)
    batches = Batches(spec, cache, layout.micro_batches_of(*layout.coords(rank)[:2]))
    model = layers(spec)
    mesh = init_device_mesh("cpu", (layout.dp,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, batches, spec.train, layout.dp)
