"""Accounts, critical path, lateness and losses of a step: by hand, and adding up exactly on random schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core import schedule
from parallel_core.analysis.breakdown import Account, Breakdown, accounts
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.lateness import late, lateness
from parallel_core.analysis.losses import NAMES, losses
from parallel_core.analysis.rows import last_end
from parallel_core.analysis.waits import waited
from parallel_core.bench import analysis
from parallel_core.layout import Layout
from parallel_core.schedule.ir import COMPUTE, Kind, Op
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import RunSpec
from tests.parallel_core.test_breakdown import layout, rows

Spans = dict[int, np.ndarray]
NAMES_DRAWN = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v")


@st.composite
def steps(draw: st.DrawFn) -> tuple[Layout, Spans, Spans]:
    """(layout, spans by global rank, planned spans by pipeline rank) of a random schedule with random costs."""
    pp, dp, chosen = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.sampled_from(NAMES_DRAWN))
    split = {"pp": pp, "dp": dp, "schedule": chosen, "micro_batches": 2 * pp * draw(st.integers(1, 2))}
    spec = RunSpec.model_validate({"model": {"layers": 8}, "parallel": split, "train": {"global_batch": 64 * 3 * 5}})
    cost = st.integers(0, 40)
    kinds = (Kind.F, Kind.B, Kind.W, Kind.ALLREDUCE, Kind.OPT_STEP)
    compute = {(s, kind): draw(cost) for s in range(spec.parallel.stages) for kind in kinds}
    made = simulate(schedule.build(spec), Costs(compute, message=draw(cost), norm=draw(st.booleans())))
    here = Layout.of(spec)
    zero = draw(st.integers(0, 10**15))
    shifted = {}
    for q, table in made.items():
        table = table.copy()
        table["start"] += zero
        table["end"] += zero
        shifted[here.tensor_group(q)[0]] = table
    return here, shifted, made


@given(steps())
def test_accounts_add_up_on_any_schedule(step: tuple[Layout, Spans, Spans]) -> None:
    here, spans, _ = step
    for rank, account in accounts(spans, here).items():
        table = spans[rank]
        assert account.parts.total == int(table["end"].max() - table["start"].min())
        assert account.warmup + account.steady + account.drain == account.parts.bubble
        assert min(account.warmup, account.steady, account.drain, account.overlapped) >= 0


@given(steps())
def test_the_critical_path_is_the_step(step: tuple[Layout, Spans, Spans]) -> None:
    here, spans, _ = step
    path = critical_path(spans, here)
    begin = min(int(table["start"].min()) for table in spans.values())
    end = max(int(table["end"].max()) for table in spans.values())
    assert int((path["end"] - path["start"]).sum()) == end - begin
    if len(path):
        assert np.array_equal(path["start"][1:], path["end"][:-1])
        assert (path["start"][0], path["end"][-1]) == (begin, end)
    for link in path:
        assert spans[int(link["rank"])]["kind"][link["row"]] == link["kind"]


@dataclass(frozen=True, slots=True)
class _Without(Costs):
    """Costs at which the operation `free` takes no time."""

    free: Op | None = None

    def of(self, op: Op) -> int:
        return 0 if op == self.free else Costs.of(self, op)


@pytest.mark.parametrize("name", NAMES_DRAWN)
def test_without_what_is_off_the_critical_path_a_step_is_as_long(name: str) -> None:
    """Also where a message is under way when its receiver comes to it: the sender then decides when it goes on."""
    split = {"pp": 3, "schedule": name, "micro_batches": 6}
    spec = RunSpec.model_validate({"model": {"layers": 8}, "parallel": split, "train": {"global_batch": 6}})
    drawn, made, here = np.random.default_rng(5), schedule.build(spec), Layout.of(spec)
    for _ in range(6):
        kinds = (Kind.F, Kind.B, Kind.W, Kind.OPT_STEP)
        compute = {(s, kind): int(drawn.integers(1, 40)) for s in range(made.stages) for kind in kinds}
        costs = _Without(compute, message=int(drawn.integers(5, 40)))
        spans = simulate(made, costs)
        path = critical_path({here.tensor_group(q)[0]: table for q, table in spans.items()}, here)
        on = {(int(link["rank"]), int(link["row"])) for link in path}
        for q, program in enumerate(made.programs):
            for i, op in enumerate(program):
                if op.kind in COMPUTE and op.partner is None and (here.tensor_group(q)[0], i) not in on:
                    assert last_end(simulate(made, replace(costs, free=op))) == last_end(spans), op


@given(steps())
def test_nothing_is_late_against_itself(step: tuple[Layout, Spans, Spans]) -> None:
    here, spans, planned = step
    table = lateness(planned, spans, here)
    operations = sum(int((rows_["kind"] < 32).sum()) for rows_ in spans.values())
    assert len(table) == operations
    assert not late(table).any()
    assert np.array_equal(table["start"], table["planned_start"])


@given(steps(), st.integers(1, 10**6), st.integers(0, 10**5))
def test_losses_add_up_to_what_is_missing(step: tuple[Layout, Spans, Spans], compute: int, rest: int) -> None:
    here, spans, _ = step
    parts = [account.parts for account in accounts(spans, here).values()]
    found = losses(Breakdown(compute=compute, optimizer=rest), parts)
    assert found.total == sum(part.total for part in parts)
    if found.total:
        lost = sum(found.in_speedup(name) for name in NAMES)
        assert abs(found.devices - lost - found.speedup) < 1e-6 * (abs(lost) + 1)
    assert found.imbalance >= 0 <= found.bubble


@given(steps(), st.integers(-200, 200), st.data())
def test_clocks_that_are_off_leave_every_sum_whole(
    step: tuple[Layout, Spans, Spans], off: int, data: st.DataObject
) -> None:
    """Clocks of another host may be off, so that a receive seems to end before its send began: all sums must still add
    up.
    """
    here, spans, planned = step
    for rank in data.draw(st.sets(st.sampled_from(sorted(spans)))):
        for side in ("start", "end"):
            spans[rank][side] += off
    for rank, account in accounts(spans, here).items():
        assert account.parts.total == int(spans[rank]["end"].max() - spans[rank]["start"].min())
        assert account.warmup + account.steady + account.drain == account.parts.bubble
        assert min(*account.parts.as_dict().values(), account.warmup, account.steady, account.drain) >= 0
    path = critical_path(spans, here)
    begin = min(int(table["start"].min()) for table in spans.values())
    assert int((path["end"] - path["start"]).sum()) == max(int(table["end"].max()) for table in spans.values()) - begin
    assert np.array_equal(path["start"][1:], path["end"][:-1])
    for rank, found in waited(spans, here).items():
        assert (found.ns >= 0).all() and (found.ns <= spans[rank]["end"] - spans[rank]["start"]).all()
    assert len(lateness(planned, spans, here)) == sum(int((table["kind"] < 32).sum()) for table in spans.values())


def test_a_wait_before_the_first_backward_is_warm_up_and_one_behind_the_last_forward_drains() -> None:
    spans = rows(
        (Kind.STEP, 0, 100),
        (Kind.F, 0, 10, 0, 0),
        (Kind.RECV_GRAD, 10, 30, 0, 0),
        (Kind.BW, 30, 40, 0, 0),
        (Kind.RECV_ACT, 40, 45, 0, 1),
        (Kind.F, 45, 50, 0, 1),
        (Kind.RECV_GRAD, 50, 80, 0, 1),
        (Kind.BW, 80, 100, 0, 1),
    )
    sends = ((Kind.SEND_GRAD, 29, 30, 1, 0), (Kind.SEND_ACT, 44, 45, -1, 1), (Kind.SEND_GRAD, 79, 80, 1, 1))
    found = accounts({0: spans, 1: rows((Kind.STEP, 0, 100), *sends)}, layout(pp=2))[0]
    assert (found.warmup, found.steady, found.drain) == (19, 4, 29)
    assert found.parts == Breakdown(compute=45, bubble=52, exposed_p2p=3, forward=15)


def test_a_bucket_behind_the_backward_is_overlapped() -> None:
    spans = rows((Kind.STEP, 0, 60), (Kind.BW, 0, 40), (Kind.BUCKET, 20, 50))
    assert accounts({0: spans}, layout())[0] == Account(
        Breakdown(compute=40, exposed_collective=10, other=10, forward=0), overlapped=20
    )


def test_the_path_changes_ranks_where_one_waited_for_the_other() -> None:
    first = rows((Kind.STEP, 0, 90), (Kind.F, 0, 40), (Kind.SEND_ACT, 40, 41), (Kind.NORM, 41, 90))
    second = rows((Kind.STEP, 0, 90), (Kind.RECV_ACT, 5, 45, 1, 0), (Kind.F, 45, 80, 1, 0), (Kind.NORM, 80, 90))
    path = critical_path({0: first, 1: second}, layout(pp=2))
    assert [(int(link["rank"]), Kind(int(link["kind"])).name, int(link["end"] - link["start"])) for link in path] == [
        (0, "F", 40),
        (1, "RECV_ACT", 5),
        (1, "F", 35),
        (0, "NORM", 10),
    ]


def test_a_late_operation_and_one_that_is_not_planned() -> None:
    plan = rows((Kind.F, 0, 10, 0, 0), (Kind.BW, 10, 30, 0, 0))
    measured = rows(
        (Kind.STEP, 100, 160), (Kind.F, 102, 115, 0, 0), (Kind.BW, 115, 140, 0, 0), (Kind.F, 140, 150, 0, 9)
    )
    table = lateness({0: plan}, {0: measured}, layout())
    assert late(table).tolist() == [5, 10]
    assert lateness({}, {0: measured}, layout()).size == 0


def test_losses_of_a_pipeline() -> None:
    single = Breakdown(compute=100, optimizer=4)
    uneven = [
        Breakdown(compute=60, exposed_p2p=6, optimizer=4),
        Breakdown(compute=50, bubble=15, exposed_p2p=1, optimizer=4),
    ]
    found = losses(single, uneven)
    assert (found.imbalance, found.bubble, found.communication) == (10, 5, 7)
    assert (found.smaller_kernels, found.other, found.total) == (10, 4, 140)
    assert losses(single, [single]) == replace(losses(single, [single]), devices=1, single=104)
    assert losses(single, [single]).speedup == 1


def test_the_benchmark_of_the_analysis_says_what_it_measured() -> None:
    found = analysis.run(1, 8_000)
    assert found["text"].startswith("8,000 spans on 8 ranks: accounts ")
    assert min(found[name] for name in ("accounts", "critical_path", "lateness")) > 0


@pytest.mark.full
def test_a_million_spans_add_up() -> None:
    n = 500_000
    spans = {}
    for rank in (0, 1):
        table = np.zeros(n, rows().dtype)
        table["kind"] = np.resize([Kind.F, Kind.SEND_ACT, Kind.BW, Kind.RECV_GRAD], n)
        table["stage"], table["micro_batch"] = rank, np.arange(n) // 4
        table["start"], table["end"] = 3 * np.arange(n), 3 * np.arange(n) + 2
        spans[rank] = table
    here = layout(pp=2)
    assert {account.parts.total for account in accounts(spans, here).values()} == {3 * n - 1}
    path = critical_path(spans, here)
    assert int((path["end"] - path["start"]).sum()) == 3 * n - 1
