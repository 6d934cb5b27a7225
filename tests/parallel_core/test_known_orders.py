"""Recovering pipelines without annotations that have several stages per rank or a split backward: from simulated steps,
and from real traces of torch's schedules whose annotations are removed first and then used to verify the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.profiler import ProfilerActivity, profile, schedule

from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.table import to_csv
from parallel_core.schedule.traits import place
from parallel_core.simulate.recovered import recover
from parallel_core.simulate.recovered_replay import Recovered
from parallel_core.simulate.replay import Change
from parallel_core.spec import RunSpec
from parallel_core.traces.__main__ import read_all
from parallel_core.traces.inferred_pipeline import NotCounted, counted
from parallel_core.traces.job_trace import JobTrace
from parallel_core.traces.kineto import RankTrace
from parallel_core.traces.known_orders import ordered
from parallel_core.traces.known_programs import TORCH_ZB, label, torch_zero_bubble
from tests.parallel_core import ranks
from tests.parallel_core.test_inferred_pipeline import COUNT, Spans, bare, bare_of

WHOLE = {Kind.B: Kind.BW, Kind.W: Kind.BW}


def keys(rows: NDArray[np.void], whole_first: bool = False) -> list[tuple[str, int, int]]:
    """(kind, stage, micro-batch) of every row; with `whole_first`, both parts of the first stage's backward count as
    BW.
    """
    out = []
    for kind, stage, i in zip(*(rows[name].tolist() for name in ("kind", "stage", "micro_batch")), strict=True):
        said = WHOLE.get(Kind(kind), Kind(kind)) if whole_first and stage == 0 else Kind(kind)
        out.append((said.name, stage, i))
    return out


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("name", ["interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"])
def test_the_order_of_a_known_schedule_names_stages_and_micro_batches(name: str, pp: int) -> None:
    known, given = bare(name, pp)
    for rows in given.values():
        halves = np.isin(rows["kind"], [int(Kind.B), int(Kind.W)])
        rows["kind"][halves] = Kind.BW  # autograd does not say which gradient it computes
    with pytest.raises(NotCounted):
        counted(given)
    found, named = ordered(given)
    assert found == name
    for rank, rows in named.items():
        assert keys(rows, whole_first=True) == keys(known[rank], whole_first=True)


def test_replicas_stand_beside_each_other() -> None:
    known, given = bare("interleaved", 2, dp=2)
    name, named = ordered(given)
    assert name == "interleaved"
    assert all(rows["stage"].tolist() == known[rank]["stage"].tolist() for rank, rows in named.items())
    assert {int(rows["micro_batch"].max()) for rows in named.values()} == {COUNT - 1}


def test_more_stages_a_rank_are_told() -> None:
    known, given = bare("interleaved", 2, chunks=4)
    _, named = ordered(given)
    assert all(keys(rows) == keys(known[rank]) for rank, rows in named.items())


def _without_a_forward(spans: Spans) -> Spans:
    first = np.flatnonzero(spans[0]["kind"] == Kind.F)[2]
    return spans | {0: np.delete(spans[0], first)}


def _with_another_order(spans: Spans) -> Spans:
    """Rank 0 does its first backward where its last forward was."""
    rows = spans[0].copy()
    forward, backward = (np.flatnonzero(rows["kind"] == kind) for kind in (Kind.F, Kind.BW))
    rows["kind"][forward[-1]], rows["kind"][backward[0]] = Kind.BW, Kind.F
    return spans | {0: rows}


def _too_early(spans: Spans) -> Spans:
    """The last rank's times are a quarter of a step too early: it starts before anything could have arrived."""
    rows = spans[1].copy()
    shift = int(rows["end"].max() - rows["start"].min()) // 4
    rows["start"] -= shift
    rows["end"] -= shift
    return spans | {1: rows}


@pytest.mark.parametrize("spoil", [_without_a_forward, _with_another_order, _too_early])
def test_what_no_schedule_does_is_not_guessed(spoil: Any) -> None:
    _, given = bare("interleaved", 2)
    with pytest.raises(NotCounted, match="the order of no schedule known here"):
        ordered(spoil(given))


def test_counting_is_not_believed_where_a_stage_would_be_ahead_of_the_one_before_it() -> None:
    """Messages can be balanced in other pipelines, too: one in a V, or with several stages per rank and a split
    backward.
    """
    _, given = bare("gpipe", 2)
    assert counted(given)
    rows = given[0].copy()
    begun = rows["start"] >= rows["start"][rows["kind"] == Kind.F].max()
    last = np.flatnonzero(np.isin(rows["kind"], [int(Kind.F), int(Kind.SEND_ACT)]) & begun)
    rows["start"][last] += 1_500_000
    rows["end"][last] += 1_500_000
    with pytest.raises(NotCounted, match="rank 1 would be ahead of rank 0"):
        counted(given | {0: rows})


@pytest.mark.parametrize(("pp", "chunks", "count"), [(2, 2, 4), (2, 3, 8), (3, 2, 8), (4, 2, 12), (4, 1, 2)])
def test_the_interleaved_zero_bubble_is_that_of_pytorch(pp: int, chunks: int, count: int) -> None:
    made = torch_zero_bubble(pp, chunks, count)
    turns = max(1, count // pp)
    asked = SimpleNamespace(pp_group_size=pp, n_local_stages=chunks, _n_microbatches=count)
    asked.microbatches_per_round = count // turns
    for rank, row in enumerate(to_csv(made).splitlines()):
        theirs = ScheduleInterleavedZeroBubble._calculate_single_rank_operations(asked, rank)  # type: ignore[arg-type]
        assert row == ",".join(str(op) for op in theirs if op is not None)


@pytest.mark.parametrize(("pp", "chunks"), [(2, 2), (2, 3), (4, 2)])
def test_the_order_of_pytorchs_interleaved_zero_bubble_is_told(pp: int, chunks: int) -> None:
    made = torch_zero_bubble(pp, chunks, 2 * pp)
    spec = RunSpec.model_validate(
        {
            "parallel": {"pp": pp, "micro_batches": 2 * pp, "schedule": "custom", "program": to_csv(made)},
            "model": {"layers": pp * chunks},
            "train": {"global_batch": 2 * pp},
        }
    )
    known, given = bare_of(spec)
    for rows in given.values():
        rows["kind"][np.isin(rows["kind"], [int(Kind.B), int(Kind.W)])] = Kind.BW
    found, named = ordered(given)
    assert found == TORCH_ZB
    for rank, rows in named.items():
        assert keys(rows, whole_first=True) == keys(known[rank], whole_first=True)


STEPS = 6
"""Steps recorded from the real pipelines. Other processes may delay an operation so that its step is not recognized,
but not in all steps.
"""
TORCH: dict[str, tuple[Any, int, int]] = {
    "interleaved": (ScheduleInterleaved1F1B, 2, 0),
    "zb-h1": (ScheduleInterleavedZeroBubble, 1, 0),
    TORCH_ZB: (ScheduleInterleavedZeroBubble, 2, 0),
    "zb-v": (ScheduleZBVZeroBubble, 2, 1),
    "dualpipe-v": (ScheduleDualPipeV, 2, 1),
}
"""For each schedule name: torch's class, its number of stages per rank, and whether first and last stage share a
rank.
"""


TRIES = 4
"""If other processes disturbed all of its steps, a pipeline is run again, up to this many times."""


def _work(names: Sequence[str], spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    connect(meeting, rank, Layout.of(spec), "gloo")
    try:
        for name in names:
            _train(name, rank, folder / f"{name}-rank{rank}.json")
    finally:
        disconnect()


def _train(name: str, rank: int, path: Path) -> None:
    """Runs some steps of one of torch's own schedules and exports the trace."""
    made, chunks, bent = TORCH[name]
    mine = [stage for stage in range(2 * chunks) if place("v" if bent else "line", stage, 2) == rank]
    stages = []
    for stage in mine:
        torch.manual_seed(stage)
        model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU())))
        stages.append(PipelineStage(model, stage, 2 * chunks, torch.device("cpu")))
    optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=0.01)
    pipeline = made(stages, COUNT, loss_fn=nn.MSELoss())
    given: dict[str, Any] = {"target": torch.zeros(1024, 512), "losses": []} if 2 * chunks - 1 in mine else {}
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda seen: seen.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(2 + STEPS):
            optimizer.zero_grad()
            pipeline.step(torch.ones(1024, 512), **given) if 0 in mine else pipeline.step(**given)
            optimizer.step()
            profiler.step()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _traced(list(TORCH), tmp_path_factory.mktemp("torch"))


def _traced(names: Sequence[str], folder: Path) -> Path:
    ranks.run(RunSpec.model_validate({"parallel": {"dp": 2}}), partial(_work, names), folder)
    return folder


def _stripped(path: Path, to: Path) -> Path:
    """Writes the trace without the annotations of torch.distributed.pipelining."""
    told = json.loads(path.read_text())
    told["traceEvents"] = [one for one in told["traceEvents"] if not re.match("PP:", str(one.get("name", "")))]
    to.write_text(json.dumps(told))
    return to


def _read(paths: list[Path]) -> JobTrace:
    return read_all([(path.name, path) for path in paths])


def _passes(trace: RankTrace, step: int) -> list[tuple[str, int, int]]:
    """What a rank did, in order; the first stage's backward counts as whole, because torch does not split it."""
    rows = trace.steps[step]
    own = keys(rows[(rows["micro_batch"] >= 0) & np.isin(rows["kind"], [0, 2, 3, 4])], whole_first=True)
    return list(dict.fromkeys(own))


@pytest.mark.full
@pytest.mark.parametrize("name", list(TORCH))
def test_real_pipelines_of_torch_are_recovered_without_annotations(name: str, real: Path, tmp_path: Path) -> None:
    for turn in range(TRIES):
        folder = _traced([name], tmp_path) if turn else real
        files = [folder / f"{name}-rank{rank}.json" for rank in range(2)]
        known = _read(files)
        found = _read([_stripped(path, tmp_path / f"bare-{path.name}") for path in files])
        if found.ranks[0].counted:
            break
    (note,) = [note for note in found.notes if note.startswith(("Likely", "Not recovered"))]
    steps = found.ranks[0].counted
    assert steps, note
    assert f"the ranks did what {label(name)} does" in note
    assert f"{2 * TORCH[name][1]} stages and {COUNT} micro-batches" in note
    bars: list[float] = []
    for step in steps:
        for rank in range(2):
            assert _passes(found.ranks[rank], step) == _passes(known.ranks[rank], step)
        spans = {rank: trace.steps[step] for rank, trace in found.ranks.items()}
        pipeline = recover(spans)
        assert pipeline.schedule.stages == 2 * TORCH[name][1]
        work = {rank: keys(rows[np.isin(rows["kind"], [0, 2, 3, 4])]) for rank, rows in spans.items()}
        pieces = sum(key[2] >= 0 for own in work.values() for key in own)
        bars.append(pieces / sum(map(len, pipeline.schedule.programs)))
        again = Recovered.of(spans)
        assert again is not None and again.replay(Change(links=2.0)).step > 0
    assert min(bars) <= 1.5, "an operation is one bar, or a few if other processes interrupt it"
