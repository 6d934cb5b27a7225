"""The shares of every step from each rank's few numbers: those that the whole spans give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.analysis import step_waits
from parallel_core.analysis.breakdown import breakdown
from parallel_core.analysis.meters import every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits, reduced, shares_in_turn, shares_of
from parallel_core.analysis.waits import blocked_in
from parallel_core.engine.clocks import Clock
from parallel_core.engine.step_meter import StepMeter
from parallel_core.layout import Layout
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.observe.recorder import LANE_P2P, SpanRecorder
from parallel_core.observe.records import SPAN, STEP_SUM, WAIT
from parallel_core.outcome import waits
from parallel_core.schedule import build
from parallel_core.schedule.ir import FLIGHT, Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import read_file

Steps = list[dict[int, np.ndarray]]
"""The SPAN rows of each rank, step by step."""
LENGTH = 1_000
SPLITS: tuple[dict[str, Any], ...] = ({}, {"pp": 2}, {"dp": 2}, {"tp": 2}, {"pp": 2, "dp": 2, "micro_batches": 4})
KINDS = [kind for kind in Kind if kind != Kind.STEP]


def layout_of(split: dict[str, Any]) -> Layout:
    return Layout.of(RunSpec.model_validate({"parallel": split}))


def of_ranks(steps: Steps, layout: Layout, numbers: Sequence[int] | None = None) -> dict[int, StepWaits]:
    """What each rank records of the steps, all at once."""
    numbers = range(len(steps)) if numbers is None else numbers
    return {
        rank: reduced(
            np.concatenate([step[rank] for step in steps]), blocked_in(rank, layout), numbers, [1.0] * len(steps)
        )
        for rank in steps[0]
    }


def at(rows: Sequence[Sequence[int]], begin: int, length: int = LENGTH) -> np.ndarray:
    """A step that begins at `begin`, from (kind, start, end, stage, micro-batch) of its spans."""
    made: list[tuple[int, ...]] = [(Kind.STEP, 3, 0, -1, 0, 0, begin, begin + length, 0)]
    made += [(kind, 0, stage, i, 0, 0, begin + start, begin + end, 0) for kind, start, end, stage, i in rows]
    return np.array(made, SPAN)


@st.composite
def whole_steps(draw: st.DrawFn) -> tuple[Layout, Steps]:
    """Up to three steps of arbitrary spans on every rank, with other numbers of collectives on each."""
    layout = layout_of(draw(st.sampled_from(SPLITS)))
    instants = st.integers(0, LENGTH)
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))  # few, so that ranks have some in common
    span = st.tuples(st.sampled_from(kinds), instants, instants, st.integers(0, 1), st.integers(0, 2)).map(
        lambda row: (row[0], min(row[1:3]), max(row[1:3]), *row[3:])
    )
    spans = st.lists(span, max_size=8)
    count = draw(st.integers(1, 3))
    return layout, [{rank: at(draw(spans), n * 2 * LENGTH) for rank in range(layout.world)} for n in range(count)]


@settings(max_examples=150, deadline=None)
@given(whole_steps())
def test_arbitrary_steps_have_the_nanoseconds_of_their_breakdown(given_steps: tuple[Layout, Steps]) -> None:
    layout, steps = given_steps
    found = shares_of(of_ranks(steps, layout), layout)
    assert found.steps.tolist() == list(range(len(steps)))
    for n, step in enumerate(steps):
        parts = breakdown(step, layout).values()
        assert found.total[n] == sum(part.total for part in parts)
        assert found.recompute[n] == sum(part.recompute for part in parts)
        assert found.communication[n] == sum(part.communication for part in parts)
        assert found.bubble[n] == sum(part.bubble for part in parts)


def test_bubble_of_1f1b_in_every_step_is_the_one_of_the_formula() -> None:
    """(p - 1) / (m + p - 1) (Huang et al. 2019), with steps of other lengths, all of them joined at once."""
    spec = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 4}})
    layout, steps, begin = Layout.of(spec), list[dict[int, np.ndarray]](), 0
    for length in (1_000, 3_000, 2_000):
        spans = simulate(build(spec), Costs.uniform(2, length, length, length))
        last = max(int(rows["end"].max()) for rows in spans.values())
        step = {}
        for rank, rows in spans.items():
            norm = [(Kind.NORM, int(rows["end"].max()), last, 0, -1)]
            step[rank] = np.concatenate([at(norm, 0, last), rows])
            step[rank]["start"] += begin
            step[rank]["end"] += begin
        steps.append(step)
        begin += last + 500
    numbers, values = every_step(of_ranks(steps, layout, [3, 7, 8]), layout)
    assert numbers.tolist() == [3, 7, 8]
    assert values["bubble_share"] == pytest.approx([1 / 5] * 3, rel=1e-12)
    assert not values["exposed_share"].any() and not values["recompute_share"].any()


@pytest.mark.parametrize(("inside", "split"), [(Kind.TP_COLLECTIVE, "tp"), (Kind.UNSHARD, "dp")])
def test_a_collective_behind_computation_is_reached_where_it_begins_in_every_step(inside: Kind, split: str) -> None:
    """As in the breakdown of a traced step: of 4 ns that rank 0 waits, 0 and then 2 are for rank 1."""
    layout = layout_of({split: 2})
    steps: Steps = []
    for n, late in enumerate((8, 22)):
        both = {}
        for rank, (begin, start, end) in enumerate(((5, 20, 24), (late, 28, 30))):
            flown = [(FLIGHT[inside], begin, start, 0, 0), (inside, start, end, 0, 0)]
            both[rank] = at([(Kind.BW, 0, 40, 0, 0), *flown], n * 2 * LENGTH)
        steps.append(both)
    found = shares_of(of_ranks(steps, layout), layout)
    assert found.bubble.tolist() == [0, 2] == [sum(p.bubble for p in breakdown(s, layout).values()) for s in steps]
    assert found.communication.tolist() == [6, 4]


def test_only_steps_of_all_ranks_are_joined() -> None:
    """A rank with more spans keeps fewer steps; the others' records of the rest do not shift what is matched."""
    layout = layout_of({"dp": 2})
    steps = [
        {
            0: at([(Kind.NORM, 100, 400, 0, -1)], n * 2 * LENGTH),
            1: at([(Kind.NORM, 100 + 50 * n, 400, 0, -1)], n * 2 * LENGTH),
        }
        for n in range(5)
    ]
    found = of_ranks(steps, layout)
    found[1] = found[1].among(np.array([True, False, True, False, True]))
    numbers, values = every_step(found, layout)
    assert numbers.tolist() == [0, 2, 4]
    expected = [step_shares(steps[n], layout) for n in numbers]
    for name, value in values.items():
        assert value == pytest.approx([one[name] for one in expected], abs=1e-12)
    assert values["bubble_share"][2] == pytest.approx(200 / (2 * LENGTH))
    assert every_step({0: found[0]}, layout)[0].size == every_step({}, layout)[0].size == 0


def test_many_steps_are_joined_in_parts() -> None:
    """A receive is matched with the send of its own step, also where by the clocks it began too late."""
    layout = layout_of({"pp": 2})
    steps = [
        {
            0: at([(Kind.SEND_ACT, 10 + n % 40, 60, 0, 1)], n * 2 * LENGTH),
            1: at([(Kind.RECV_ACT, 0, 30, 1, 1)], n * 2 * LENGTH),
        }
        for n in range(4_200)
    ]
    bubble = shares_of(of_ranks(steps, layout), layout).bubble
    assert bubble.tolist() == [min(10 + n % 40, 30) for n in range(4_200)]


def test_a_step_does_not_hide_the_next_one_where_clocks_were_compared_in_between() -> None:
    """By the clock of its host as it was known then, the first step ended after the second one."""
    layout = layout_of({"dp": 2})
    steps = [
        {rank: at([(Kind.NORM, 100 + 300 * rank, 900, 0, -1)], begin) for rank in (0, 1)} for begin in (5_000, 4_500)
    ]
    apart = [of_ranks([step], layout, [n]) for n, step in enumerate(steps)]
    both = {rank: StepWaits.chain([one[rank] for one in apart]) for rank in (0, 1)}
    assert shares_of(both, layout).bubble.tolist() == [300, 300]


def test_steps_of_a_whole_run_are_read_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_waits, "_TOGETHER", 8)
    layout = layout_of({"dp": 2})
    steps = [
        {rank: at([(Kind.NORM, 100 + (n % 7) * 50 * rank, 900, 0, -1)], n * 2 * LENGTH) for rank in (0, 1)}
        for n in range(100)
    ]
    found, read = of_ranks(steps, layout), dict.fromkeys((0, 1), 0)
    found[1] = found[1].among(np.arange(100) % 3 != 1).cut(60)[0]

    def records(rank: int, size: int) -> Iterator[StepWaits]:
        for part in found[rank].parts(size):
            read[rank] += 1
            yield part

    one, other = shares_in_turn({0: records(0, 3), 1: records(1, 5)}, layout), shares_of(found, layout)
    assert all(np.array_equal(getattr(one, part), getattr(other, part)) for part in one._fields)
    assert one.steps.tolist() == [n for n in range(61) if n % 3 != 1]
    assert read[1] == 9 and 21 <= read[0] <= 25, "not to its end, as the other rank has no more"
    assert shares_in_turn({0: records(0, 3), 1: iter(())}, layout).steps.size == 0


def test_a_rank_emits_the_steps_since_the_last_time_and_says_how_long_that_took(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    meter = StepMeter(recorder, 1, layout_of({"pp": 2}))
    with closing(FileSink(tmp_path, 1)) as sink:
        for upto in (3, 5):
            for step in range(recorder.step + 1, upto):
                recorder.begin_step(step)
                begun = recorder.mark()
                recorder.add(Kind.RECV_ACT, LANE_P2P, 1, 0, begun, recorder.mark())
                meter.ended(traced=False)
            meter.emit(sink, Clock(), whole=False)
            assert meter.spent() > 0 and meter.spent() == 0
        meter.emit(sink, Clock(), whole=True)
    frames = read_file(events_path(tmp_path, 1))
    assert [frame.header["steps"] for frame in frames] == [3, 2]
    found = StepWaits.chain([*waits(frames)])
    assert found.sums["step"].tolist() == list(range(5))
    assert found.sums["count"].tolist() == [1] * 5
    assert found.sums["waiting"].tolist() == (found.rows["end"] - found.rows["start"]).tolist()


def test_a_record_is_read_as_it_was_written() -> None:
    layout = layout_of({"dp": 2})
    steps = [{rank: at([(Kind.NORM, 100, 400, 0, -1)], n * 2 * LENGTH) for rank in (0, 1)} for n in range(2)]
    one = of_ranks(steps, layout)[0]
    again = StepWaits.unpack(one.pack(), 2)
    assert (again.sums == one.sums).all() and (again.rows == one.rows).all() and len(one.rows) == 2
    for blob, count in ((one.pack()[:-1], 2), (one.pack(), 1), (one.pack(), -1), (one.pack(), 1 << 40), (b"", 1)):
        with pytest.raises(ValueError, match="waits"):
            StepWaits.unpack(blob, count)
    lying = one.sums.copy()
    lying["count"] = 7
    with pytest.raises(ValueError, match="the steps have 14"):
        StepWaits.unpack(StepWaits(lying, one.rows).pack(), 2)
    assert STEP_SUM.itemsize == 48 and WAIT.itemsize == 23, "what a short step and each of its waits add to a record"
