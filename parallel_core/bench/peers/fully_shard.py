"""torch.distributed.fsdp.fully_shard (FSDP2), a group a layer and what is left at the root, as its tutorial shows."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.bench.turns import Contestant, metered
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
    optimizer = adamw(model, spec.train)

    def step(number: int) -> float:
        tokens, targets = batches(number)
        loss = mean_loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        return float(total) / layout.dp

    return Contestant(step, metered(step, model))
