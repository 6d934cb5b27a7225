"""Benchmark of always-on recording: what it adds to a real step, and ns per span.

The same run takes part twice, in the same ranks and turns: once with its spans recorded and, as a run does for traced
steps only, turned into an array at the end of every step; once with marks and spans switched off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.bench import goals, turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups, groups_of
from parallel_core.launch_rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.local import Outcome
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COMPUTE, SpanRecorder
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

SPANS = 20_000
TURNS = 10
"""Turns per round: the steps of a pair differ by some percent, and the goal is one percent of their median."""
MOST = 0.01


def spec_of() -> RunSpec:
    """Returns the run: the default model as two stages of 1F1B, with many operations in a step."""
    return RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 8}, "train": {"steps": 100_000}})


def contestants(name: str, seat: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns the contestants `on` and `off`."""
    del name
    from parallel_core.bench import ours

    assert groups.store is not None
    own = groups_of(seat.rank, Layout.of(seat.spec), groups.store)
    return {
        "on": with_array(ours.build(seat.spec, seat.rank, groups, page, seat.folder, traced=True)),
        "off": ours.build(seat.spec, seat.rank, own, page, seat.folder, recorded=False),
    }


def with_array(contestant: Contestant) -> Contestant:
    """Returns a traced contestant whose step includes turning its spans into an array."""
    step, spans = contestant.step, contestant.spans
    assert spans is not None

    def run(number: int) -> float | None:
        loss = step(number)
        spans()
        return loss

    return contestant._replace(step=run)


def run(rounds: int) -> dict[str, Any]:
    """Returns share (median of what recording adds to a step, turn by turn), likely (its 95 % confidence interval),
    turns, step_s (median of a step with recording), spans_per_step of rank 0, ns_per_span and by_count (share of a step
    by number and cost of its spans)."""
    outcome = turns.held("spans", "", spec_of(), rounds * TURNS)
    cost = float(np.median([_cost() for _ in range(max(3, rounds))]))
    ranks = turns.results(outcome)
    on, off = (turns.slowest(ranks, side) for side in ("on", "off"))
    added = on / off - 1
    share, likely, step, count = float(np.median(added)), median_interval(added), float(np.median(on)), _count(outcome)
    by_count = count * cost / step
    text = (
        f"recording adds {share:+.2%} to a step of {step * 1e3:.0f} ms (95 % confidence {likely[0]:+.2%} to "
        f"{likely[1]:+.2%}{_undecided(likely)}, {len(added)} turns with and without); {count} spans of "
        f"{cost * 1e9:.0f} ns by themselves are {by_count:.3%} of it"
    )
    return {
        "share": share,
        "likely": likely,
        "turns": len(added),
        "step_s": step,
        "spans_per_step": count,
        "ns_per_span": cost * 1e9,
        "by_count": by_count,
        "goals": [
            goals.at_most("recording spans, added to a step", share, MOST),
            goals.at_most("spans of a step x cost of one, of a step", by_count, MOST),
        ],
        "text": text,
    }


def _undecided(likely: tuple[float, float]) -> str:
    """Returns a remark where more turns, or a quieter host, are needed to tell whether the goal is met."""
    return ", which does not decide the goal" if likely[0] <= MOST < likely[1] else ""


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % confidence interval of the median of independent values, without assuming a distribution: from
    the order statistics n/2 ± 1.96 sqrt(n)/2 (Conover, Practical Nonparametric Statistics, section 3.2)."""
    ordered, count = np.sort(values), len(values)
    reach = 1.96 * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    return float(ordered[max(0, low)]), float(ordered[min(count - 1, high)])


def _cost() -> float:
    """Returns seconds per span, including both marks and the conversion to an array."""
    recorder = SpanRecorder()
    start = time.perf_counter()
    recorder.begin_step(0)
    for i in range(SPANS):
        mark = recorder.mark()
        recorder.add(Kind.F, LANE_COMPUTE, 0, i, mark, recorder.mark())
    recorder.end_step()
    return (time.perf_counter() - start) / SPANS


def _count(outcome: Outcome) -> int:
    """Returns the number of spans of a step on rank 0."""
    return next(len(frame.blob) // SPAN.itemsize for frame in outcome.frames[0] if frame.kind == "spans")
