"""Local search that shortens an order: one operation of a critical block moves at a time.

Takes the best neighbour that was not visited before, even if it is worse, to leave local minima (a tabu search as in
Nowicki and Smutnicki 1996 for the job shop, with memory limits as additional constraints).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallel_core.plan.orders.problem import BW, B, F, Problem, W, kept_after
from parallel_core.plan.orders.timing import Timing, critical, timing

_ROUNDING = 1e-9
MOST_NEIGHBOURS = 24
"""Most neighbours of one order that are timed, evenly spread over all of them."""
PATIENCE = 40
"""Changes in a row without improvement after which the search stops."""


@dataclass
class Budget:
    """Operations that may still be timed: a deterministic limit, the same on every machine."""

    left: int
    used: int = 0

    def take(self, operations: int) -> bool:
        """Takes so many operations; False once the budget is exceeded."""
        self.left -= operations
        self.used += operations
        return self.left >= 0


@dataclass(frozen=True, slots=True)
class Order:
    """Programs with their timing; `rank` is what the search minimises."""

    programs: tuple[tuple[int, ...], ...]
    timing: Timing
    rank: tuple[int, int]


def timed(problem: Problem, programs: Sequence[Sequence[int]]) -> Order | None:
    """The order with its timing; None where it deadlocks or a rank exceeds its limit."""
    if not all(fits(problem, rank, program) for rank, program in enumerate(programs)):
        return None
    return _timed(problem, tuple(map(tuple, programs)))


def _timed(problem: Problem, programs: tuple[tuple[int, ...], ...]) -> Order | None:
    found = timing(problem, programs)
    return None if found is None else Order(programs, found, found.rank(problem.barrier))


def fits(problem: Problem, rank: int, program: Sequence[int]) -> bool:
    """Whether a program stays within memory, and every W comes after its B, every B after its F."""
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
    """The best order found from `order`; stops at the lower bound `bound`."""
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
    """Orders that differ in one change of a critical block, as far as memory and the order on each rank allow."""
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
    """Changes of a block: a swap at either end; a W, or that of a BW, moved to its end; a W moved to its front; B and W
    joined."""
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
    """B at `i` and the next W of its stage joined to one BW; None where that W belongs to another micro-batch."""
    stage = program[i] >> 2
    following = [j for j, token in enumerate(program) if token == stage * 4 + W and j > i]
    before = sum((token == stage * 4 + B) - (token == stage * 4 + W) for token in program[:i])
    if not following or before:
        return None
    j = following[0]
    return [*program[:i], stage * 4 + BW, *program[i + 1 : j], *program[j + 1 :]]


def _within(problem: Problem, rank: int, program: list[int]) -> list[int] | None:
    """The program, with a W moved forward if memory is exceeded; None where that does not help."""
    if fits(problem, rank, program):
        return program
    limit = problem.limit[rank] + _ROUNDING
    i = next((i for i, held in enumerate(kept_after(problem, program)) if held > limit), None)
    j = next((j for j in range((i or 0) + 1, len(program)) if program[j] & 3 == W), None)
    if i is None or j is None:
        return None
    pulled = [*program[:i], program[j], *program[i:j], *program[j + 1 :]]
    return pulled if fits(problem, rank, pulled) else None
