"""Traces of plain PyTorch, as users bring them: unmarked steps, DTensor, checkpointing, torch's own pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from parallel_core.analysis.breakdown import breakdown
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate.imported import replayed
from parallel_core.simulate.recovered import recover
from parallel_core.spec import RunSpec
from parallel_core.traces.__main__ import read_all
from parallel_core.traces.job_trace import JobTrace
from parallel_core.traces.known_programs import like
from tests.parallel_core import ranks

STEPS, COUNT, WIDTH = 3, 4, 128
Step = Callable[[], None]


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def _record(step: Step, path: Path) -> None:
    """Records STEPS unmarked steps, after one step that is not recorded."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(STEPS):
            step()
    seen.export_chrome_trace(str(path))


def _trained(model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        run(torch.ones(64, WIDTH)).sum().backward()
        optimizer.step()

    return step


def _read(*paths: Path) -> JobTrace:
    return read_all([(path.name, path) for path in paths])


def _kinds(rows: NDArray[np.void]) -> Counter[Kind]:
    return Counter(Kind(kind) for kind in rows["kind"])


# One process


def test_steps_that_nothing_marks_are_told_by_their_updates(tmp_path: Path) -> None:
    model = _layers()
    _record(_trained(model, model), tmp_path / "rank0.json")
    found = _read(tmp_path / "rank0.json")
    steps = found.ranks[0].steps
    assert sorted(steps) == list(range(STEPS))
    assert any(f"{STEPS} steps are recognised by their updates" in note for note in found.notes)
    for rows in steps.values():
        kinds = _kinds(rows)
        assert kinds[Kind.STEP] == kinds[Kind.OPT_STEP] == 1 and kinds[Kind.F] and kinds[Kind.BW]
        assert (rows["start"] >= rows["start"][rows["kind"] == Kind.STEP]).all()
    edges = [int(rows["end"][rows["kind"] == Kind.OPT_STEP][0]) for rows in steps.values()]
    begun = [int(rows["start"].min()) for rows in steps.values()]
    assert begun[1:] == edges[:-1], "a step begins where the previous update ended"
    assert all(found.ranks[0].operations[step] for step in steps)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_recomputes_is_no_backward(tmp_path: Path, reentrant: bool) -> None:
    blocks = nn.ModuleList(_layers() for _ in range(3))

    def run(x: torch.Tensor, again: bool = True) -> torch.Tensor:
        x = x.requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant) if again else block(x)
        return x

    _record(_trained(blocks, run), tmp_path / "again.json")
    _record(_trained(blocks, lambda x: run(x, again=False)), tmp_path / "once.json")
    again, once = (_read(tmp_path / name).ranks[0].steps[1] for name in ("again.json", "once.json"))
    assert not _kinds(once)[Kind.R]
    assert _kinds(again)[Kind.R] >= len(blocks)
    work = np.isin(again["kind"], [int(kind) for kind in (Kind.BW, Kind.R)])
    kinds = again[work][np.argsort(again["start"][work], kind="stable")]["kind"]
    changes = int((np.diff((kinds == Kind.R).astype(int)) == 1).sum())
    assert changes == len(blocks), "each block is recomputed before its own backward"


# Two ranks


def _split() -> Step:
    model = nn.Sequential(*(_layers() for _ in range(2)))
    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return _trained(model, model)


def _piped(made: Any, rank: int) -> Step:
    mine = [rank] if made is ScheduleGPipe else [rank, 3 - rank]
    stages = [PipelineStage(_layers(), stage, 2 * len(mine), torch.device("cpu")) for stage in mine]
    optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=0.01)
    pipeline = made(stages[0] if len(mine) == 1 else stages, COUNT, loss_fn=nn.MSELoss())
    last = 2 * len(mine) - 1
    given: dict[str, Any] = {"target": torch.zeros(256, WIDTH), "losses": []} if last in mine else {}

    def step() -> None:
        optimizer.zero_grad()
        pipeline.step(torch.ones(256, WIDTH), **given) if 0 in mine else pipeline.step(**given)
        optimizer.step()

    return step


PIPELINES = {"gpipe": ScheduleGPipe, "zb-v": ScheduleZBVZeroBubble, "dualpipe-v": ScheduleDualPipeV}


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    connect(meeting, rank, Layout.of(spec), "gloo")
    try:
        _record(_split(), folder / f"split-rank{rank}.json")
        for name, made in PIPELINES.items():
            _record(_piped(made, rank), folder / f"{name}-rank{rank}.json")
    finally:
        disconnect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch")
    ranks.run(RunSpec.model_validate({"parallel": {"dp": 2}}), _work, made)
    return made


def test_sums_inside_of_a_split_layer_hold_up_its_rank(folder: Path) -> None:
    """DTensor issues them deep inside an operation and waits for them there; that must not count as compute."""
    found = _read(*(folder / f"split-rank{rank}.json" for rank in range(2)))
    spans = {rank: trace.steps[1] for rank, trace in found.ranks.items()}
    sums = [_kinds(rows)[Kind.BUCKET] for rows in spans.values()]
    assert sums == [2 + 1] * 2, (
        "one per layer and direction, except for the gradient of the training data, which nobody needs"
    )
    parts = breakdown(spans, Layout.unknown(2))
    assert all(own.exposed_collective > 0 for own in parts.values())
    took, free = (
        max(int(rows["end"].max()) for rows in replayed(spans, links=links).values()) for links in (1.0, float("inf"))
    )
    assert free < took


@pytest.mark.parametrize("name", list(PIPELINES))
def test_annotated_pipelines_are_whole(name: str, folder: Path) -> None:
    """Includes schedules whose first stage goes backward at once, and forwards that share an annotation with a
    backward.
    """
    found = _read(*(folder / f"{name}-rank{rank}.json" for rank in range(2)))
    assert any(note.startswith("Certain: ") for note in found.notes)
    stages = 2 if name == "gpipe" else 4
    for step in range(STEPS):
        spans = {rank: trace.steps[step] for rank, trace in found.ranks.items()}
        pipeline = recover(spans)
        assert (pipeline.schedule.stages, pipeline.schedule.micro_batches) == (stages, COUNT)
        assert like(pipeline.schedule) == TRAITS[name].label
        kinds = {rank: _kinds(rows[np.isin(rows["kind"], [int(kind) for kind in P2P])]) for rank, rows in spans.items()}
        for rank, other in ((0, 1), (1, 0)):
            assert kinds[rank][Kind.SEND_ACT] == kinds[other][Kind.RECV_ACT]
            assert kinds[rank][Kind.SEND_GRAD] == kinds[other][Kind.RECV_GRAD]
        assert sum(kinds[0].values()) == 2 * COUNT * (stages // 2), "each message once"
        talks = [rows[np.isin(rows["kind"], [int(kind) for kind in P2P])] for rows in spans.values()]
        assert all((rows["stage"] >= 0).all() and (rows["micro_batch"] >= 0).all() for rows in talks)
