"""Pipelines of imported jobs: what is recovered of them, and what-if answers for them.

Steps are simulated, then everything that a foreign trace lacks is removed; and one real trace comes from
torch.profiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.diagnosis.case import Finding
from parallel_core.analysis.diagnosis.imported import diagnose
from parallel_core.analysis.lateness import late, lateness
from parallel_core.layout import Layout
from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, P2P, Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.recovered import NotRecovered, overtaken, recover
from parallel_core.simulate.recovered_replay import MOST_OFF, Recovered
from parallel_core.simulate.replay import FREE, Change, plan
from parallel_core.spec import RunSpec
from parallel_core.traces.__main__ import read_all
from tests.parallel_core.test_profiled import traces
from tests.parallel_core.test_trainer import frames, spec_of

Spans = dict[int, NDArray[np.void]]
US = 1_000
NAMES = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v")
MESSAGE = 40 * US


def spec(schedule: str, **split: Any) -> RunSpec:
    parallel = {"pp": 2, "micro_batches": 4, "schedule": schedule} | split
    return RunSpec.model_validate({"parallel": parallel, "train": {"global_batch": 48}})


def costs(of: RunSpec, norm: bool = True, last: float = 1.0, norm_ns: int = 0) -> Costs:
    """Two devices with equal total work: the work of each stage shrinks as the number of stages grows."""
    share = 2 // (of.parallel.stages // of.parallel.pp)
    each = {Kind.F: 900, Kind.B: 1_000, Kind.W: 800, Kind.OPT_STEP: 400 // share, Kind.ALLREDUCE: 300}
    table = {(s, kind): ns * US * share for s in range(of.parallel.stages) for kind, ns in each.items()}
    end = of.parallel.stages - 1
    table |= {(end, kind): round(table[end, kind] * last) for kind in (Kind.F, Kind.B, Kind.W)}
    return Costs(table, MESSAGE, norm=norm, norm_ns=norm_ns)


def step_of(spans: Mapping[int, NDArray[np.void]]) -> int:
    return max(int(rows["end"].max()) for rows in spans.values())


def foreign(of: RunSpec, stages: bool = True, norm: bool = True, last: float = 1.0, norm_ns: int = 0) -> Spans:
    """The step of `of` as it would look in a trace of annotated kernels: compute in two pieces, reductions, one update.
    Without `stages`, messages are unnamed, too.
    """
    out = {}
    for rank, rows in simulate(build(of), costs(of, norm, last, norm_ns)).items():
        work = rows[np.isin(rows["kind"], [int(kind) for kind in COMPUTE])]
        halves = np.concatenate([work, work])
        middle = (work["start"] + work["end"]) // 2
        halves["end"][: len(work)], halves["start"][len(work) :] = middle, middle + 3
        halves["micro_batch"] //= of.parallel.dp  # each replica counts its own
        if not stages:
            halves["stage"] = -1
        kinds = [int(Kind.ALLREDUCE), int(Kind.NORM)] if norm_ns else [int(Kind.ALLREDUCE)]
        sums = rows[np.isin(rows["kind"], kinds)].copy()
        sums["kind"], sums["stage"] = Kind.BUCKET, -1
        updates = rows[rows["kind"] == Kind.OPT_STEP]
        update = updates[:1].copy()
        met = rows["end"][rows["kind"] == Kind.NORM]
        update["start"], update["end"] = max([int(update["start"][0]), *met.tolist()]), updates["end"].max()
        step = np.zeros(1, SPAN)
        step["kind"], step["lane"], step["micro_batch"] = Kind.STEP, LANES.index("host"), -1
        step["end"] = update["end"]
        messages = rows[np.isin(rows["kind"], [int(kind) for kind in P2P]) & (not stages)].copy()
        messages["stage"] = messages["micro_batch"] = -1
        own = np.concatenate([step, halves, sums, update, messages])
        own["start"] += 10**9
        own["end"] += 10**9
        out[rank] = own
    return out


def recovered(of: RunSpec, **how: Any) -> Recovered:
    found = Recovered.of(foreign(of, **how), "cuda")
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dp", [1, 2])
def test_the_schedule_is_known_again_and_its_replay_is_the_step(name: str, dp: int) -> None:
    of = spec(name, dp=dp)
    found = recovered(of)
    assert found.pipeline.schedule.name == name
    assert (found.pipeline.schedule.micro_batches, found.pipeline.replicas, found.pipeline.width) == (4, dp, 1)
    assert found.pipeline.stages_named and overtaken(found.pipeline) <= 0
    assert found.step == step_of(simulate(build(of), costs(of)))
    assert found.off <= 0.001
    assert found.measured.norm
    layout = Layout.of(found.spec)
    joined = lateness(plan(found.spec, found.measured), found.rows, layout)
    work = joined[np.isin(joined["kind"], [int(kind) for kind in COMPUTE])]
    done = sum(int(np.isin(rows["kind"], [int(kind) for kind in COMPUTE]).sum()) for rows in found.rows.values())
    assert len(work) == done > 0, "each operation has its plan"
    assert np.abs(late(work)).max() <= 0.001 * found.step, "as alike operations take equally long"
    path = critical_path(found.rows, layout)
    assert (int(path["start"][0]), int(path["end"][-1])) == (10**9, 10**9 + found.step)


@pytest.mark.parametrize("before", ["gpipe", "1f1b", "zb-h1", "zb-v"])
@pytest.mark.parametrize("after", ["1f1b", "zb-h1", "interleaved", "zb-v"])
def test_another_schedule_takes_what_it_would_have_taken(before: str, after: str) -> None:
    """An unsplit backward is divided into equal halves for the gradients of input and weights; here the input's is a
    bit more.
    """
    really = step_of(simulate(build(spec(after)), costs(spec(after))))
    made = recovered(spec(before)).replay(Change(schedule=after))
    assert made.step == pytest.approx(really, rel=0.03)
    assert made.spec.parallel.schedule == after


def test_changes_do_what_they_say() -> None:
    """More micro-batches of the same batch, free links, a faster device, even stages."""
    found, of = recovered(spec("1f1b")), spec("1f1b")
    assert found.replay(Change(micro_batches=8)).step < found.step < found.replay(Change(micro_batches=2)).step
    free = simulate(build(of), Costs(costs(of).compute, 0, norm=True))
    assert found.replay(Change(links=FREE)).step == pytest.approx(step_of(free), rel=1e-3)
    assert found.replay(Change(links=2)).step < found.step
    assert found.replay(Change(device=2)).step == pytest.approx(found.step / 2, rel=0.02)
    early = spec("1f1b", early_gradients=True)
    assert found.replay(Change(early_gradients=True)).step == pytest.approx(
        step_of(simulate(build(early), costs(early))), rel=0.03
    )
    uneven = recovered(of, last=0.5)
    evened = simulate(
        build(of), Costs({k: round(ns * 0.75) for k, ns in costs(of).compute.items()}, MESSAGE, norm=True)
    )
    assert uneven.replay(Change(balanced=True)).step == pytest.approx(step_of(evened), rel=0.02)
    assert uneven.step > 1.1 * step_of(evened)


def test_stages_without_names_are_told_by_the_order_of_beginning() -> None:
    found = recovered(spec("1f1b", dp=2), stages=False)
    assert not found.pipeline.stages_named
    assert (found.pipeline.schedule.name, found.pipeline.replicas) == ("1f1b", 2)
    assert found.pipeline.ranks == ((0, 2), (1, 3)), "pipeline ranks count place by place within a replica"
    assert found.off <= 0.001


def test_without_a_meeting_each_rank_updates_when_it_is_through() -> None:
    found = recovered(spec("1f1b"), norm=False)
    assert not found.measured.norm
    assert found.off <= 0.001


@pytest.mark.parametrize("dp", [1, 2])
def test_the_collective_of_the_norm_is_no_part_of_the_update(dp: int) -> None:
    of = spec("1f1b", dp=dp)
    found = recovered(of, norm_ns=70 * US)
    assert found.off <= 0.001
    assert set(found.measured.norms) == {70 * US}
    free = {**costs(of).compute} | {(stage, Kind.ALLREDUCE): 0 for stage in range(2)}
    made = simulate(build(of), Costs(free, 0, norm=True))
    assert found.replay(Change(links=FREE)).step == pytest.approx(step_of(made), rel=1e-3)


def test_an_order_of_its_own_is_replayed_and_cannot_get_more_micro_batches() -> None:
    program = "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n"
    found = recovered(spec("custom", program=program))
    assert found.pipeline.schedule.name == "custom"
    assert found.off <= 0.001
    assert found.replay(Change(schedule="1f1b", micro_batches=8)).step < found.step
    with pytest.raises(ValidationError, match="does not fit the program"):
        found.replay(Change(micro_batches=8))


def test_rules_judge_a_recovered_pipeline() -> None:
    def found(of: RunSpec, **how: Any) -> dict[str, Finding]:
        return {one.rule: one for one in diagnose([foreign(of, **how)])}

    few = found(spec("1f1b", micro_batches=2))["few_micro_batches"]
    assert "8 micro-batches would save" in few.evidence and few.effect_ns > 0
    assert few.title.startswith("33 % of the step is no work")
    assert "1F1B would save" in found(spec("naive"))["few_micro_batches"].evidence
    assert not found(spec("1f1b", micro_batches=12))
    heavy = found(spec("1f1b", micro_batches=12), last=1.6)
    assert list(heavy) == ["unbalanced_stages"]
    assert (heavy["unbalanced_stages"].rank, heavy["unbalanced_stages"].title[:5]) == (1, "1.23x")


def test_what_is_missing_is_said() -> None:
    whole = foreign(spec("1f1b"))

    def without(rank: int, keep: NDArray[np.bool_]) -> Spans:
        return whole | {rank: whole[rank][keep]}

    rows = whole[1]
    gone = (rows["kind"] == Kind.BW) & (rows["micro_batch"] == 2)
    with pytest.raises(NotRecovered, match="lacks the backward of micro-batch 2 on stage 1: the trace is cut"):
        recover(without(1, ~gone))
    with pytest.raises(NotRecovered, match="nothing names the micro-batches of rank 1"):
        recover(without(1, rows["micro_batch"] < 0))
    with pytest.raises(NotRecovered, match="no rank did anything of stage 0"):
        recover({1: rows})
    with pytest.raises(NotRecovered, match="rank 1 worked on 3 micro-batches, another on 4"):
        recover(without(1, rows["micro_batch"] != 3))
    bare = {rank: own[own["micro_batch"] < 0] for rank, own in whole.items()}
    with pytest.raises(NotRecovered, match="nothing names stages or micro-batches"):
        recover(bare)
    assert Recovered.of(bare) is None, "nothing indicates a pipeline"
    alike = foreign(spec("1f1b"), stages=False)[0]
    together = dict.fromkeys(range(2), alike)
    with pytest.raises(NotRecovered, match="begin together, as replicas do"):
        recover(together)


def test_our_own_export_comes_back_as_a_foreign_trace(tmp_path: Path) -> None:
    """Two stages under torch.profiler; only the profiler's files are read."""
    of = spec_of(trace={"profile_steps": [4]}, train={"steps": 6}, pp=2, micro_batches=4, schedule="zb-h1")
    seen = frames(of, tmp_path)
    files = []
    for rank, own in enumerate(seen):
        path = tmp_path / f"rank{rank}.json.gz"
        path.write_bytes(traces(own)[4])
        files.append((path.name, path))
    job = read_all(files)
    found = Recovered.of({rank: trace.steps[4] for rank, trace in job.ranks.items()})
    assert found is not None
    assert (found.pipeline.schedule.name, found.pipeline.ranks) == ("zb-h1", ((0,), (1,)))
    assert found.measured.norm, "ranks meet in the norm, which is annotated"
    assert found.off <= MOST_OFF
    assert found.replay(Change(links=FREE)).step <= found.step * (1 + 1e-6)
    assert found.replay(Change(device=2)).step < found.step
    assert found.replay(Change(schedule="gpipe")).step > 0
