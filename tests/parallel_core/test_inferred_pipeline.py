"""Pipelines without annotations: recovered by counting messages, in simulated steps and in a real trace of torch's
1F1B.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import ProfilerActivity, profile, schedule

from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.layout import Layout
from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, RECVS, SENDS, Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.recovered import recover
from parallel_core.simulate.recovered_replay import MOST_OFF, Recovered
from parallel_core.simulate.replay import Change
from parallel_core.spec import RunSpec
from parallel_core.traces.__main__ import read_all
from parallel_core.traces.inferred_pipeline import NotCounted, counted
from parallel_core.traces.job_trace import join
from parallel_core.traces.kineto import RankTrace
from tests.parallel_core import ranks

Spans = dict[int, NDArray[np.void]]
COUNT = 4
"""Micro-batches of a replica."""


def bare(name: str, pp: int, dp: int = 1, **split: Any) -> tuple[Spans, Spans]:
    """The step of a pipeline, and the same with only forward, backward and messages distinguished."""
    parallel = {"pp": pp, "dp": dp, "micro_batches": COUNT, "schedule": name} | split
    spec = RunSpec.model_validate({"parallel": parallel, "model": {"layers": 8}, "train": {"global_batch": 16}})
    return bare_of(spec)


def bare_of(spec: RunSpec) -> tuple[Spans, Spans]:
    halves = {Kind.B: 1_100_000, Kind.W: 900_000}
    each = {**halves, Kind.F: 1_000_000, Kind.BW: 2_000_000, Kind.ALLREDUCE: 300_000, Kind.OPT_STEP: 100_000}
    table = {(stage, kind): ns for stage in range(spec.parallel.stages) for kind, ns in each.items()}
    known = simulate(build(spec), Costs(table, 40_000, norm=False))
    out = {}
    for rank, rows in known.items():
        own = rows[np.isin(rows["kind"], [int(kind) for kind in (*COMPUTE, *SENDS, *RECVS)])].copy()
        for group, kind in ((SENDS, Kind.SEND_ACT), (RECVS, Kind.RECV_ACT)):
            own["kind"][np.isin(own["kind"], [int(one) for one in group])] = kind
        own["stage"] = own["micro_batch"] = -1
        out[rank] = own
        known[rank] = rows[np.isin(rows["kind"], [int(kind) for kind in (*COMPUTE, *SENDS, *RECVS)])]
    return known, out


@pytest.mark.parametrize(("pp", "dp"), [(2, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "naive"])
def test_stages_and_micro_batches_are_counted(name: str, pp: int, dp: int) -> None:
    known, given = bare(name, pp, dp)
    found = counted(given)
    for rank, rows in found.items():
        theirs = known[rank]
        assert rows["stage"].tolist() == theirs["stage"].tolist()
        within = np.unique(theirs["micro_batch"]).tolist()
        assert rows["micro_batch"].tolist() == [within.index(i) for i in theirs["micro_batch"].tolist()]
        assert rows["kind"].tolist() == theirs["kind"].tolist(), "messages carry activations or gradients"
    if dp == 1:
        assert recover(found).schedule.name == name


@pytest.mark.parametrize(("name", "said"), [("gpipe", True), ("looped-bfs", True), ("1f1b", False)])
def test_an_order_of_backwards_that_nothing_tells_is_said_to_be_assumed(name: str, said: bool) -> None:
    _, given = bare(name, 2)
    job = join([(f"rank{rank}.json", rank, RankTrace(steps={0: rows})) for rank, rows in given.items()])
    (note,) = [note for note in job.notes if note.startswith("Likely: ")]
    assert ("takes the last one first" in note) is said


def test_a_last_stage_that_begins_early_on_its_clock_is_still_the_last() -> None:
    known, given = bare("1f1b", 2)
    given[1]["start"] -= 10**12
    given[1]["end"] -= 10**12
    assert set(counted(given)[1]["stage"].tolist()) == {1} == set(known[1]["stage"].tolist())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda spans: {0: spans[0]}, "only one rank has a trace"),
        (lambda spans: spans | {0: spans[0][spans[0]["kind"] != Kind.SEND_ACT]}, "rank 0 does not both send"),
        (lambda spans: spans | {1: spans[1][1:]}, "rank 1 sends 4 times and receives 3 times"),
        (lambda spans: spans | {0: spans[0][spans[0]["kind"] != Kind.BW]}, "messages part 0 backwards on rank 0"),
    ],
)
def test_what_does_not_come_out_even_is_not_guessed(spoil: Any, words: str) -> None:
    with pytest.raises(NotCounted, match=words):
        counted(spoil(bare("gpipe", 2)[1]))


def test_stages_in_chunks_are_not_guessed() -> None:
    with pytest.raises(NotCounted):
        counted(bare("interleaved", 2, chunks=2)[1])


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    connect(meeting, rank, Layout.of(spec), "gloo")
    try:
        _train(rank, folder / f"rank{rank}.json")
    finally:
        disconnect()


def _train(rank: int, path: Path) -> None:
    """Steps 2 and 3 of torch's own 1F1B, which annotates nothing."""
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    pipeline = Schedule1F1B(stage, COUNT, loss_fn=nn.MSELoss())
    given: dict[str, Any] = {"target": torch.zeros(256, 256), "losses": []}
    steps = schedule(wait=1, warmup=1, active=2)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps,
        on_trace_ready=lambda seen: seen.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            pipeline.step(torch.ones(256, 256)) if rank == 0 else pipeline.step(**given)
            optimizer.step()
            profiler.step()


def test_a_real_pipeline_of_torch_is_recovered_without_annotations(tmp_path: Path) -> None:
    ranks.run(RunSpec.model_validate({"parallel": {"dp": 2}}), _work, tmp_path)
    job = read_all([(f"rank{rank}.json", tmp_path / f"rank{rank}.json") for rank in range(2)])
    first, second = (trace.counted for trace in job.ranks.values())
    assert first == second and first and set(first) <= {2, 3}, job.notes  # a step that others disturb may show no order
    (note,) = [note for note in job.notes if note.startswith("Likely: ")]
    assert "2 stages" in note and "4 micro-batches" in note and f"in {len(first)} of 2 steps" in note
    for step in first:
        found = Recovered.of({rank: trace.steps[step] for rank, trace in job.ranks.items()})
        assert found is not None and found.pipeline.schedule.name == "1f1b"
        assert found.pipeline.ranks == ((0,), (1,))
        assert found.off <= MOST_OFF
        assert found.replay(Change(micro_batches=16)).step > 0
