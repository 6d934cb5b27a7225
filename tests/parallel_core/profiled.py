"""Real traces for tests: two gloo ranks train a small network under torch.profiler and export the traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

STEPS = 3
MICRO_BATCHES = 2


def record(folder: Path) -> list[Path]:
    """Writes `rank0.json` and `rank1.json` with STEPS marked steps of MICRO_BATCHES annotated micro-batches each."""
    spec = RunSpec.model_validate({"parallel": {"dp": 2}})
    ranks.run(spec, _work, folder)
    return [folder / f"rank{rank}.json" for rank in range(2)]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    connect(meeting, rank, Layout.of(spec), "gloo")
    try:
        _train(folder / f"rank{rank}.json")
    finally:
        disconnect()


def _train(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def export(profiler: Any) -> None:
        profiler.export_chrome_trace(str(path))

    steps = schedule(wait=0, warmup=1, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=export) as profiler:
        for _ in range(STEPS + 1):
            optimizer.zero_grad()
            for i in range(MICRO_BATCHES):
                x = torch.ones(16, 32)
                with record_function(f"PP:0F{i}"):
                    loss = (model(x) - x).pow(2).mean()
                with record_function(f"PP:0B{i}"):
                    loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            profiler.step()
