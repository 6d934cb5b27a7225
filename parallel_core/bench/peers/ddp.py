"""torch.nn.parallel.DistributedDataParallel; the loss reported is the mean over ranks, as this engine's is."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.bench.turns import Contestant, metered
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    layout = Layout.of(spec)
    batches = Batches(spec, cache, layout.micro_batches_of(*layout.coords(rank)[:2]))
    model = DistributedDataParallel(layers(spec), gradient_as_bucket_view=True)
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
