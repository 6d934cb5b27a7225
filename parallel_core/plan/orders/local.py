"""Makes an order shorter, a change at a time: operations of a critical block change places.

The steepest descent that never returns to where it was, so that it may climb out of a dip (a tabu search as Nowicki and
Smutnicki 1996 have for the job shop, with what memory admits as one more rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallel_core.plan.orders.problem import BW, B, F, Problem, W, kept_after
from parallel_core.plan.orders.timing import Timing, critical, timing

_ROUNDING = 1e-9
MOST_NEIGHBOURS = 24
"""Of one order that are looked at; of more, evenly spread ones."""
PATIENCE = 40
"""Changes in a row without a gain, after which it is given up."""


@dataclass
class Budget:
    """Operations that may still be timed: the same number gives the same order on every machine."""

    left: int
    used: int = 0

    def take(self, operations: int) -> bool:
        self.left -= operations
        self.used += operations
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class Order:
    """Programs with their timing; `rank` is what is made small."""

    programs: tuple[tuple[int, ...], ...]
    timing: Timing
    rank: tuple[int, int]


def timed(problem: Problem, programs: Sequence[Sequence[int]]) -> Order | None:
    """None where it does not end, or a rank keeps more than its limit."""
    if not all(fits(problem, rank, program) for rank, program in enumerate(programs)):
        return None
    return _timed(problem, tuple(map(tuple, programs)))


def _timed(problem: Problem, programs: tuple[tuple[int, ...], ...]) -> Order | None:
    found = timing(problem, programs)
    return None if found is None else Order(programs, found, found.rank(problem.barrier))


def fits(problem: Problem, rank: int, program: Sequence[int]) -> bool:
    """Whether it keeps within memory, and every W stands behind its B, every B behind its F."""
    if max(kept_after(problem, program), default=0.0) > problem.limit[rank] + _ROUNDING:
        return False
    count = [[0, 0, 0] for _ in range(problem.stages)]
    for token in program:
        own, kind = count[token >> 2], token & 3
        own[B if kind == BW else kind] += 1
        if kind == BW:
            own[W] += 1
        if not own[F] >= own[B] >= own[W] or (kind == BW and own[B] != own[W]):
            return False
    return True


def improve(problem: Problem, order: Order, budget: Budget, bound: int) -> Order:
    """The best order on the way; ends at `bound`, below which there is none."""
    best, now, seen, waited = order, order, {order.programs}, 0
    size = sum(map(len, order.programs))
    while best.rank[0] > bound and waited < PATIENCE:
        found: Order | None = None
        for programs in _neighbours(problem, now):
            if programs in seen:
                continue
            if not budget.take(size):
                return best
            seen.add(programs)
            made = _timed(problem, programs)
            if made is not None and (found is None or made.rank < found.rank):
                found = made
        if found is None:
            return best
        now, waited = found, waited + 1
        if now.rank < best.rank:
            best, waited = now, 0
    return best


def _neighbours(problem: Problem, order: Order) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Orders that differ in one change of a critical block, as far as memory and the order on each rank admit."""
    made = [
        (rank, program)
        for rank, first, last in critical(problem, order.programs, order.timing)
        for program in _changes(problem, order.programs[rank], first, last)
    ]
    every = max(1, len(made) // MOST_NEIGHBOURS)
    for rank, program in made[::every]:
        fixed = _within(problem, rank, program)
        if fixed is not None:
            yield (*order.programs[:rank], tuple(fixed), *order.programs[rank + 1 :])


def _changes(problem: Problem, program: Sequence[int], first: int, last: int) -> Iterator[list[int]]:
    """A swap at either end of the block; a W, or a BW's W, behind it; a W in front of it; B and W as one."""
    for i in {first, last - 1}:
        if first <= i < last and program[i] != program[i + 1]:
            yield [*program[:i], program[i + 1], program[i], *program[i + 2 :]]
    for i in range(first, last + 1):
        token, kind = program[i], program[i] & 3
        if kind == W and i < last:
            yield [*program[:i], *program[i + 1 : last + 1], token, *program[last + 1 :]]
        if kind == W and i > first:
            yield [*program[:first], token, *program[first:i], *program[i + 1 :]]
        if kind == BW and problem.whole[token >> 2]:
            b, w = token - BW + B, token - BW + W
            yield [*program[:i], b, *program[i + 1 : last + 1], w, *program[last + 1 :]]
        if kind == B and (joined := _joined(program, i)) is not None:
            yield joined


def _joined(program: Sequence[int], i: int) -> list[int] | None:
    """B at `i` and the next W of its stage as one BW; None where that W is another micro-batch's."""
    stage = program[i] >> 2
    behind = [j for j, token in enumerate(program) if token == stage * 4 + W and j > i]
    before = sum((token == stage * 4 + B) - (token == stage * 4 + W) for token in program[:i])
    if not behind or before:
        return None
    j = behind[0]
    return [*program[:i], stage * 4 + BW, *program[i + 1 : j], *program[j + 1 :]]


def _within(problem: Problem, rank: int, program: list[int]) -> list[int] | None:
    """The program, with a W pulled forward where memory runs out; None where it cannot be."""
    if fits(problem, rank, program):
        return program
    limit = problem.limit[rank] + _ROUNDING
    i = next((i for i, held in enumerate(kept_after(problem, program)) if held > limit), None)
    j = next((j for j in range((i or 0) + 1, len(program)) if program[j] & 3 == W), None)
    if i is None or j is None:
        return None
    pulled = [*program[:i], program[j], *program[i:j], *program[j + 1 :]]
    return pulled if fits(problem, rank, pulled) else None
