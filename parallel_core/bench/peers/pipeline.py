"""torch.distributed.pipelining as contestant: the schedule of the same name, with this engine's cuts or in whole
blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.bench.turns import Contestant, metered
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec

SINGLE = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
MULTI = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "looped-bfs": pipelining.ScheduleLoopedBFS,
    "zb-h1": pipelining.ScheduleInterleavedZeroBubble,
    "zb-v": pipelining.ScheduleZBVZeroBubble,
    "dualpipe-v": pipelining.ScheduleDualPipeV,
}
"""Schedules with several stages per rank; with a single one, InterleavedZeroBubble is ZB-H1."""


def in_whole_blocks(spec: RunSpec) -> RunSpec:
    """Returns `spec` with equally many blocks on each stage: how a model is cut by hand, at the boundaries of its
    modules.

    Raises ValueError where the number of stages does not divide that of blocks.
    """
    units, stages = spec.model.units(), Layout.of(spec).stages
    blocks, rest = divmod(spec.model.layers, stages)
    if rest:
        raise ValueError(f"{stages} stages do not divide {spec.model.layers} blocks")
    cuts = [units.index(f"block.{stage * blocks}.attn") for stage in range(1, stages)]
    return RunSpec.model_validate(spec.model_dump() | {"parallel": spec.parallel.model_dump() | {"cuts": cuts}})


def build(spec: RunSpec, rank: int, cache: Path) -> Contestant:
    layout, batches, units = Layout.of(spec), Batches(spec, cache), spec.model.units()
    numbers = layout.stages_of(rank)
    models = [layers(spec, [units[i] for i in layout.stage_units[stage]]) for stage in numbers]
    stages = [
        PipelineStage(model, stage, layout.stages, torch.device("cpu"))
        for model, stage in zip(models, numbers, strict=True)
    ]
    walk = _walk(spec.parallel.schedule, stages, spec.parallel.micro_batches)
    whole = torch.nn.ModuleList(models)
    optimizer = adamw(whole, spec.train)

    def step(number: int) -> float | None:
        tokens, targets = batches(number)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if 0 in numbers else ()
        if layout.stages - 1 in numbers:
            walk(*inputs, target=targets, losses=losses)
        else:
            walk(*inputs)
        optimizer.step()
        dist.barrier()  # in this engine, too, a step ends on all ranks together
        return float(torch.stack(losses).mean()) if losses else None

    return Contestant(step, metered(step, whole))


def _walk(name: str, stages: list[PipelineStage], count: int) -> Callable[..., object]:
    """Returns a function that runs one step of the named schedule over a rank's stages, with `count` micro-batches."""
    if name in SINGLE:
        return SINGLE[name](stages[0], count, loss_fn=mean_loss).step
    made: Any = MULTI[name](list(stages), count, loss_fn=mean_loss)
    return partial(made.step, return_outputs=False)
