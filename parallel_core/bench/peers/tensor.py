"""Tensor parallelism with DTensor as contestant: column- then row-parallel linears, vocabulary-parallel embedding, head
and loss."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.bench.turns import Contestant, metered
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    model, batches = layers(spec), Batches(spec, cache)
    mesh = init_device_mesh("cpu", (spec.parallel.tp,))
    parallelize_module(model, mesh, _plan(model))
    optimizer = adamw(model, spec.train)

    def step(number: int) -> float:
        tokens, targets = batches(number)
        optimizer.zero_grad()
        with loss_parallel():
            loss = mean_loss(model(tokens), targets)
            loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Contestant(step, metered(step, model))


def _plan(model: nn.Sequential) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {"0.token": RowwiseParallel(input_layouts=Replicate())}
    for i in range(1, len(model) - 1):
        column, row = ("qkv", "proj") if i % 2 else ("fc1", "fc2")
        plan |= {f"{i}.{column}": ColwiseParallel(), f"{i}.{row}": RowwiseParallel()}
    plan[f"{len(model) - 1}.output"] = ColwiseParallel(use_local_output=False)
    return plan
