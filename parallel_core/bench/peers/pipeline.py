"""torch.distributed.pipelining, GPipe and 1F1B, with the same cuts as this engine's stages."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from parallel_core.bench.duel import Step
from parallel_core.bench.peers.common import Batches, adamw, layers, mean_loss
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec


def build(spec: RunSpec, rank: int, cache: Path) -> Step:
    layout, batches, units = Layout.of(spec), Batches(spec, cache), spec.model.units()
    model = layers(spec, [units[i] for i in layout.stage_units[rank]])
    stage = PipelineStage(model, rank, layout.pp, torch.device("cpu"))
    kind = ScheduleGPipe if spec.parallel.schedule == "gpipe" else Schedule1F1B
    schedule = kind(stage, spec.parallel.micro_batches, loss_fn=mean_loss)
    optimizer = adamw(model, spec.train)

    def step(number: int) -> float | None:
        tokens, targets = batches(number)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        dist.barrier()  # this engine's step ends on all ranks together too
        return float(torch.stack(losses).mean()) if losses else None

    return step
