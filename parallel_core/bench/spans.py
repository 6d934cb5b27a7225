"""Benchmark of always-on recording: what it adds to a real step, and ns per span.

The same run takes part twice, in the same ranks and turns: once with its spans recorded and, as a run does for traced
steps only, turned into an array at the end of every step; once with marks and spans switched off. What a run does with
the spans of every step behind its timed part (analysis.step_waits) is timed by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.analysis.step_waits import reduced
from parallel_core.bench import goals, turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups, groups_of
from parallel_core.launch.rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COMPUTE, LANE_P2P, SpanRecorder
from parallel_core.observe.records import SPAN
from parallel_core.outcome import Outcome
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

SPANS = 20_000
STEPS = {16: 12, 1000: 3}
"""Spans of a step -> how many such steps are reduced at once: those of about a quarter of a second."""
TURNS = 10
"""Turns per round: the steps of a pair differ by some percent, and the goal is one percent of their median."""
MOST = 0.01


def spec_of() -> RunSpec:
    """Returns the run: the default model as two stages of 1F1B, with many operations in a step."""
    return RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 8}, "train": {"steps": 100_000}})


def contestants(name: str, args: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns the contestants `on` and `off`."""
    del name
    from parallel_core.bench import own_engine

    assert groups.store is not None
    own = groups_of(args.rank, Layout.of(args.spec), groups.store)
    return {
        "on": with_array(own_engine.build(args.spec, args.rank, groups, page, args.folder, traced=True)),
        "off": own_engine.build(args.spec, args.rank, own, page, args.folder, recorded=False),
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
    turns, step_s (median of a step with recording), spans_per_step of rank 0, ns_per_span, by_count (share of a step
    by number and cost of its spans) and reduce_s (spans of a step -> seconds to keep and reduce it)."""
    with turns.held("spans", "", spec_of(), rounds * TURNS) as outcome:
        ranks, count = turns.results(outcome), _count(outcome)
    cost = float(np.median([_cost() for _ in range(max(3, rounds))]))
    on, off = (turns.slowest(ranks, side) for side in ("on", "off"))
    added = on / off - 1
    share, likely, step = float(np.median(added)), median_interval(added), float(np.median(on))
    by_count = count * cost / step
    reduce = {spans: float(np.median([_reducing(spans) for _ in range(max(9, rounds))])) for spans in STEPS}
    adds = (
        f"recording adds {share:+.2%} to a step of {step * 1e3:.0f} ms (95 % confidence {likely[0]:+.2%} to "
        f"{likely[1]:+.2%}{_undecided(likely)}, {len(added)} turns with and without)"
    )
    alone = f"{count} spans of {cost * 1e9:.0f} ns by themselves are {by_count:.3%} of it"
    return {
        "share": share,
        "likely": likely,
        "turns": len(added),
        "step_s": step,
        "spans_per_step": count,
        "ns_per_span": cost * 1e9,
        "by_count": by_count,
        "reduce_s": reduce,
        "goals": [
            goals.at_most("recording spans, added to a step", share, MOST),
            goals.at_most("spans of a step x cost of one, of a step", by_count, MOST),
        ],
        "text": "; ".join([adds, alone, *map(_reduced, reduce.items())]),
    }


def _reduced(one: tuple[int, float]) -> str:
    return f"a step of {one[0]} spans is reduced in {one[1] * 1e6:.0f} us"


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


def _reducing(spans: int) -> float:
    """Returns seconds to keep and reduce a step of `spans` spans, of which two in three are messages."""
    recorder, took = SpanRecorder(), 0.0
    for step in range(STEPS[spans]):
        recorder.begin_step(step)
        for i in range(spans - 1):
            kind, lane = ((Kind.RECV_ACT, LANE_P2P), (Kind.F, LANE_COMPUTE), (Kind.SEND_ACT, LANE_P2P))[i % 3]
            recorder.add(kind, lane, 0, i // 3, recorder.mark(), recorder.mark())
        start = time.perf_counter()
        recorder.keep_step()
        took += time.perf_counter() - start
    start = time.perf_counter()
    kept = recorder.take_kept()
    assert kept is not None
    reduced(kept.rows, (Kind.NORM,), kept.steps, kept.times).pack()
    return (took + time.perf_counter() - start) / STEPS[spans]


def _count(outcome: Outcome) -> int:
    """Returns the number of spans of a step on rank 0."""
    return next(len(frame.blob) // SPAN.itemsize for frame in outcome.frames[0].of("spans"))
