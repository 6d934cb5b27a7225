"""Searches a pipeline order: handmade ones, the list scheduler under a grid of rules, then a local search from the
best.

Modelled on Qi et al. 2024a, section 3.1, whose heuristic alone is `greedy`. The result is an ordinary Schedule, never
longer than any handmade order that stays within the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf

from parallel_core.plan.orders.bound import lower_bound
from parallel_core.plan.orders.greedy import Rules, greedy
from parallel_core.plan.orders.local import Budget, Order, improve, timed
from parallel_core.plan.orders.problem import BW, B, OrderError, Problem, W, peaks, tokens
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Schedule

HANDMADE = {"line": ("1f1b", "zb-h1", "zb-h2", "gpipe"), "v": ("zb-v", "v-half", "v-min")}
GRID = tuple(
    Rules(patient, eager, ahead) for patient, eager, ahead in product((False, True), (False, True), (inf, 1.0, 1.5))
)
EFFORT = 1_000_000
"""Operations that the local search times: a few seconds."""
STARTS = 3
"""Orders from which the local search starts."""


@dataclass(frozen=True)
class FoundOrder:
    """An order with its length and the lower bound, in ns; `start` names the order that the local search began with."""

    problem: Problem
    programs: tuple[tuple[int, ...], ...]
    length: int
    bound: int
    start: str
    timed: int
    """Operations timed during the search."""

    @property
    def schedule(self) -> Schedule:
        return self.problem.schedule(self.programs)

    @property
    def laid(self) -> str:
        """Placement of its stages in words: the bound holds for orders with the same placement, and ZB-V may be shorter
        than any order with one stage a device."""
        lone = self.problem.ranks == len(self.problem.placement)
        return "with one stage a device" if lone else "laid as a V"

    @property
    def gap(self) -> float:
        """Relative distance from the bound: 0 where the order is proven optimal."""
        return self.length / self.bound - 1 if self.bound else 0.0

    @property
    def kept(self) -> list[float]:
        """The most that each rank keeps, in the unit of `Problem.kept`."""
        return peaks(self.problem, self.programs)


@lru_cache(maxsize=32)
def find(problem: Problem, effort: int = EFFORT) -> FoundOrder:
    """The shortest order found. Raises OrderError where no known order stays within the limits."""
    bound, budget = lower_bound(problem), Budget(effort)
    known = sorted(_candidates(problem), key=lambda named: named[1].rank)
    if not known:
        raise OrderError("limit: no order found keeps within it; allow more.")
    starts: list[tuple[str, Order]] = []
    seen = set()
    for name, order in known:
        if order.programs not in seen and len(starts) < STARTS:
            seen.add(order.programs)
            starts.append((name, order))
    best = starts[0]
    for i, (name, order) in enumerate(starts):
        if best[1].rank[0] <= bound:
            break
        share = Budget(budget.left // (len(starts) - i))
        made = improve(problem, order, share, bound)
        budget.take(share.used)
        if made.rank < best[1].rank:
            best = (name, made)
    name, order = best[0], _fused(problem, best[1])
    return FoundOrder(problem, order.programs, order.rank[0], bound, name, budget.used)


def known_lengths(problem: Problem) -> dict[str, int | None]:
    """Length of each handmade order of this shape, in ns; None where it exceeds the limits."""
    found: dict[str, int | None] = {}
    for name in HANDMADE[_shape(problem)]:
        made = [order for programs in _handmade(problem, name) if (order := timed(problem, programs)) is not None]
        found[name] = min((order.rank[0] for order in made), default=None)
    return found


def _shape(problem: Problem) -> str:
    return "line" if problem.stages == problem.ranks else "v"


def _candidates(problem: Problem) -> Iterator[tuple[str, Order]]:
    for name in HANDMADE[_shape(problem)]:
        for programs in _handmade(problem, name):
            if (order := timed(problem, programs)) is not None:
                yield name, order
    for rules in GRID:
        made = greedy(problem, rules)
        if made is not None and (order := timed(problem, made)) is not None:
            yield "the list scheduler", order


def _handmade(problem: Problem, name: str) -> Iterator[list[list[int]]]:
    """The schedule's programs as they are, and, if they use BW, also with each BW split into B and W."""
    made = tokens(compute_only(name, problem.ranks, problem.micro_batches))
    yield made
    if any(token & 3 == BW for program in made for token in program):
        yield [[half for token in program for half in _halves(token)] for program in made]


def _halves(token: int) -> tuple[int, ...]:
    return (token - BW + B, token - BW + W) if token & 3 == BW else (token,)


def _fused(problem: Problem, order: Order) -> Order:
    """Joins B and its W where they are adjacent and the step does not become longer: one operation less to launch."""
    programs = list(order.programs)
    for rank, program in enumerate(order.programs):
        joined = _joined(problem, program)
        if len(joined) < len(program):
            programs[rank] = joined
            made = timed(problem, programs)
            if made is None or made.rank[0] > order.rank[0]:
                programs[rank] = program
    return timed(problem, programs) or order


def _joined(problem: Problem, program: tuple[int, ...]) -> tuple[int, ...]:
    owed = [0] * problem.stages
    out: list[int] = []
    for token in program:
        stage, kind = token >> 2, token & 3
        if kind == W and out and out[-1] == stage * 4 + B and owed[stage] == 1:
            out[-1], owed[stage] = stage * 4 + BW, 0
            continue
        owed[stage] += (kind == B) - (kind == W)
        out.append(token)
    return tuple(out)
