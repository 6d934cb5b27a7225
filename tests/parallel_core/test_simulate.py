"""A simulated step: the bubbles and memory stated in the papers, and the record format of a measured step."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core import schedule
from parallel_core.analysis.breakdown import breakdown
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import COMPUTE, Kind, Schedule
from parallel_core.schedule.peaks import peak_in_flight, peak_kept
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import bubble, idle_times
from parallel_core.simulate.picture import caption, picture
from parallel_core.spec import RunSpec
from tests.parallel_core.test_schedule import pipelines

PLACES = st.integers(2, 6)


def idle(made: Schedule, f: int = 1, b: int = 1, w: int = 1) -> list[int]:
    """Idle time of each rank between its first and its last operation; messages are free."""
    spans = simulate(made, Costs.uniform(made.stages, f, b, w))
    return [times.idle for times in idle_times(spans).values()]


@given(PLACES, st.integers(1, 5), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))
@pytest.mark.parametrize("name", ["interleaved", "looped-bfs"])
def test_chunks_make_the_bubble_smaller(name: str, p: int, rounds: int, v: int, f: int, b: int) -> None:
    """Narayanan et al. 2021b, section 2.2: (p - 1) / (v m) for m a multiple of p and equal chunks."""
    made = schedule.compute_only(name, p, rounds * p, chunks=v)
    spans = simulate(made, Costs.uniform(made.stages, f, b, b))
    assert max(Fraction(t.idle, t.busy) for t in idle_times(spans).values()) == Fraction(p - 1, v * rounds * p)


@given(PLACES, st.integers(1, 12))
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_one_stage_a_rank(name: str, p: int, m: int) -> None:
    """Huang et al. 2019: (p - 1) / m."""
    assert bubble(simulate(schedule.compute_only(name, p, m), Costs.uniform(p, 1, 1, 1))) == pytest.approx((p - 1) / m)


@given(PLACES, st.integers(1, 8))
def test_naive_keeps_one_stage_busy_at_a_time(p: int, m: int) -> None:
    spans = simulate(schedule.compute_only("naive", p, m), Costs.uniform(p, 1, 1, 1))
    assert max(int(rows["end"].max()) for rows in spans.values()) == 3 * m * p


@given(PLACES, st.integers(0, 12))
def test_zb_h1(p: int, more: int) -> None:
    """Qi et al. 2024a, table 2 with T_F = T_B = T_W: idle (p - 1) T_F, p micro-batches kept on every stage."""
    made = schedule.compute_only("zb-h1", p, p + more)
    assert max(idle(made)) == p - 1
    assert peak_kept(made) == (p,) * p


@given(PLACES, st.integers(0, 12))
def test_zb_h2(p: int, more: int) -> None:
    """Qi et al. 2024a, table 2: no idle time at all, 2p - 1 micro-batches kept."""
    made = schedule.compute_only("zb-h2", p, 2 * p - 1 + more)
    assert max(idle(made)) == 0
    assert peak_kept(made) == (2 * p - 1,) * p


@given(PLACES, st.integers(0, 12))
def test_zb_v(p: int, more: int) -> None:
    """Qi et al. 2024a, section 6: no idle time, p micro-batches (of two chunks each) kept."""
    made = schedule.compute_only("zb-v", p, 2 * p + more)
    assert max(idle(made)) == 0
    assert peak_kept(made) == (2 * p,) * p


@given(PLACES, st.integers(0, 12))
def test_dualpipe_v(p: int, more: int) -> None:
    """DeepSeek's DualPipeV: idle (p - 1) (F&B + B - 3W) with B the whole backward; at most 2p + 1 chunks kept."""
    made = schedule.compute_only("dualpipe-v", p, 2 * p + more)
    assert max(idle(made)) == (p - 1) * (3 + 2 - 3)
    assert max(peak_kept(made)) == 2 * p + 1


@pytest.mark.parametrize(("name", "share"), [("v-half", 1 / 2), ("v-min", 1 / 3)])
@pytest.mark.parametrize("p", [4, 6, 9, 16, 24])
def test_v_blocks_keep_a_half_and_a_third(name: str, share: float, p: int) -> None:
    """Qi et al. 2024b, table 1: the activations of 1F1B (2p chunks) times the share, plus at most a constant."""
    made = schedule.compute_only(name, p, 4 * p)
    most = max(peak_in_flight(made))
    assert share * 2 * p <= most + 1
    assert most <= share * 2 * p + 2
    assert max(peak_in_flight(schedule.compute_only("zb-v", p, 4 * p))) == 2 * p


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_v_blocks_idle_does_not_grow_with_m_at_equal_times(name: str, p: int) -> None:
    few, many = (max(idle(schedule.compute_only(name, p, m))) for m in (3 * p, 9 * p))
    assert few == many


def test_a_barrier_before_the_optimizer_shows_what_zb_h2_hides() -> None:
    """Every rank works without a pause; then all but the last one wait for it in NORM."""
    spec = RunSpec.model_validate({"parallel": {"pp": 3, "schedule": "zb-h2", "micro_batches": 8}})
    spans = simulate(schedule.build(spec), Costs.uniform(3, 1, 1, 1, norm=True))
    waits = [rows[rows["kind"] == Kind.NORM][0] for rows in spans.values()]
    assert [int(wait["end"] - wait["start"]) for wait in waits] == [2, 1, 0]
    assert len({int(wait["end"]) for wait in waits}) == 1
    assert max(times.idle for times in idle_times(spans).values()) == 0


@given(pipelines(), st.integers(0, 3))
def test_nobody_starts_before_the_input_is_there(made: Schedule, message: int) -> None:
    spans = simulate(made, Costs.uniform(made.stages, 3, 2, 1, message=message))
    ended: dict[tuple[bool, int, int], tuple[int, int]] = {}
    begun: dict[tuple[bool, int, int], tuple[int, int]] = {}
    for rank, program in enumerate(made.programs):
        compute = spans[rank][np.isin(spans[rank]["kind"], [int(kind) for kind in COMPUTE])]
        assert np.all(compute["start"][1:] >= compute["end"][:-1])
        for op, row in zip(program, compute, strict=True):
            for part in op.parts():
                if part.kind is not Kind.W:
                    key = (part.kind is Kind.F, part.stage, part.micro_batch)
                    begun[key], ended[key] = (rank, int(row["start"])), (rank, int(row["end"]))
    for (forward, stage, i), (rank, start) in begun.items():
        source = ended.get((forward, stage + (-1 if forward else 1), i))
        if source is not None:
            assert start >= source[1] + (message if source[0] != rank else 0)


def test_a_message_takes_its_time() -> None:
    spans = simulate(schedule.compute_only("naive", 3, 1), Costs.uniform(3, 5, 3, 2, message=7))
    assert int(spans[0]["end"].max()) == 3 * 5 + 3 * (3 + 2) + 4 * 7


def test_replicas_meet_in_their_reduction() -> None:
    spec = RunSpec.model_validate({"parallel": {"dp": 2, "pp": 2, "micro_batches": 2}})
    costs = Costs({(s, kind): ns for s in (0, 1) for kind, ns in ((Kind.F, 2), (Kind.BW, 4), (Kind.ALLREDUCE, 9))})
    spans = simulate(schedule.build(spec), costs)
    for ranks in ((0, 2), (1, 3)):
        sums = [spans[rank][spans[rank]["kind"] == Kind.ALLREDUCE][0] for rank in ranks]
        assert sums[0]["end"] == sums[1]["end"] == max(row["start"] for row in sums) + 9


def test_costs_of_composed_operations() -> None:
    made = schedule.compute_only("dualpipe-v", 2, 4)
    pair = next(op for op in made.programs[0] if op.kind is Kind.PAIR)
    whole = next(op for op in made.programs[0] if op.kind is Kind.BW)
    costs = Costs.uniform(4, 5, 3, 2)
    assert (costs.of(whole), costs.of(pair)) == (5, 10)
    assert Costs({(pair.stage, Kind.PAIR): 7}).of(pair) == 7


def test_spans_are_those_of_a_measured_step() -> None:
    """The same record type, usable in the same breakdown: bubble and compute add up to the step."""
    spec = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 4}})
    spans = simulate(schedule.build(spec), Costs.uniform(2, 10, 10, 10, message=1))
    assert all(rows.dtype == SPAN for rows in spans.values())
    parts = breakdown(spans, Layout.of(spec))
    for rank, found in parts.items():
        rows = spans[rank]
        assert found.compute == 4 * 30
        assert found.total == int(rows["end"].max() - rows["start"].min())
        assert found.bubble + found.exposed_p2p == found.total - found.compute


def test_programs_that_wait_for_each_other() -> None:
    made = schedule.compute_only("gpipe", 2, 1)
    with pytest.raises(ValueError, match="circle: rank 0 in 0RECV_GRAD0"):
        simulate(Schedule("broken", 2, 1, made.placement, (made.programs[0], ())), Costs())


def test_picture() -> None:
    assert picture(schedule.compute_only("1f1b", 2, 2)).splitlines() == [
        "rank 0 | F0 F1 .  .  B0 B0 .  B1 B1",
        "rank 1 | .  F0 B0 B0 F1 B1 B1 .  .",
    ]


def test_picture_of_several_stages_a_rank() -> None:
    assert picture(schedule.compute_only("zb-v", 2, 1)).splitlines() == [
        "rank 0 | 0F0 .   .   3F0 3B0 3W0 .   .   0B0 0W0",
        "rank 1 | .   1F0 2F0 .   .   2B0 2W0 1B0 1W0 .",
    ]


def test_caption() -> None:
    assert caption(schedule.compute_only("1f1b", 2, 4)) == (
        "25 % idle over busy on the worst rank (F = B = W, messages free); "
        "at most 2 micro-batches a stage kept on a rank."
    )


def test_caption_of_a_stream() -> None:
    spec = {"parallel": {"pp": 3, "micro_batches": 4, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}}
    assert caption(schedule.build(RunSpec.model_validate(spec), 3)) == (
        "A stream without a flush: idle while it fills and drains alone (F = B = W, messages free); at most "
        "3 micro-batches and 3 versions of the weights kept on a rank."
    )
