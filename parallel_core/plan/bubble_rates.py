"""Bubble rates of schedules with equal stages, as the zero-bubble paper counts them (Qi et al. 2024a).

`find` is their heuristic alone: the list scheduler, and ZB-H1 and ZB-H2 where they keep within the limit.
`orders.search` is the longer search.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from parallel_core.plan.orders.greedy import Rules, greedy
from parallel_core.plan.orders.problem import Problem
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import idle_times


class Times(NamedTuple):
    """Nanoseconds of F, B and W of one micro-batch on each (equal) stage, and of a message to the next stage."""

    f: int
    b: int
    w: int
    message: int = 0

    @property
    def work(self) -> int:
        return self.f + self.b + self.w


@lru_cache(maxsize=64)
def handmade(name: str, pp: int, micro_batches: int, chunks: int | None = None) -> Schedule:
    """The schedule with this name, with its messages."""
    return communicate(compute_only(name, pp, micro_batches, chunks=chunks))


def bubble_rate(schedule: Schedule, times: Times) -> float:
    """(cost - m (F + B + W)) / cost, cost = the longest time from a rank's first to its last operation (Qi et al.
    2024a, section 5.3): no rank waits for others before its optimizer step. A rank's times are divided evenly over
    its chunks."""
    chunks = schedule.stages // schedule.pipeline_ranks
    each = Costs.uniform(schedule.stages, times.f // chunks, times.b // chunks, times.w // chunks, times.message)
    cost = max(one.busy + one.idle for one in idle_times(simulate(schedule, each)).values())
    return 1 - schedule.micro_batches * times.work / cost


def find(pp: int, micro_batches: int, times: Times, limit: float, kept: float = 0.5) -> Schedule:
    """The schedule with the lowest bubble rate found (with its messages) that keeps at most `limit` micro-batches'
    activations on a stage.

    `kept` = the share of a micro-batch's activations that its weight gradient still needs after B. Raises ValueError if
    the limit is below one.
    """
    if limit < 1:
        raise ValueError(f"limit={limit:g}: at least one micro-batch must be kept.")
    most = {"zb-h1": pp, "zb-h2": 2 * pp - 1}
    found = [handmade(name, pp, micro_batches) for name, keeps in most.items() if limit >= min(keeps, micro_batches)]
    problem = Problem.uniform(pp, micro_batches, times[:3], times.message, limit, needed=kept, barrier=False)
    listed = (greedy(problem, Rules(patient)) for patient in (False, True))
    found += [communicate(problem.schedule(programs)) for programs in listed if programs is not None]
    return min(found, key=lambda made: bubble_rate(made, times))
