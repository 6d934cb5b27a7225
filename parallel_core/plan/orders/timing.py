"""Length of an order: every operation runs as early as its rank and its input allow, as in `simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.plan.orders.problem import B, F, Problem, Programs, W


@dataclass(frozen=True, slots=True)
class Timing:
    """Start and end of each operation of each rank, in ns."""

    starts: list[list[int]]
    ends: list[list[int]]

    def length(self, barrier: bool) -> int:
        """Length of the step in ns, as `Problem.barrier` defines it."""
        if barrier:
            return max(ends[-1] for ends in self.ends)
        return max(ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True))

    def rank(self, barrier: bool) -> tuple[int, int]:
        """What a search minimises: the length, then the sum of all ranks' end times."""
        return self.length(barrier), sum(ends[-1] for ends in self.ends)


def timing(problem: Problem, programs: Programs) -> Timing | None:
    """The order's timing; None for a deadlock."""
    walk = _Walk(problem, programs)
    return walk.run()


class _Walk:
    """Simulation of an order. Messages of a stage arrive in order: a list of times for each stage suffices."""

    def __init__(self, problem: Problem, programs: Programs) -> None:
        self.problem, self.programs = problem, programs
        stages = problem.stages
        self.acts: list[list[int]] = [[0] * problem.micro_batches, *([] for _ in range(stages - 1))]
        self.grads: list[list[int]] = [[] for _ in range(stages)]
        self.done = [[0] * stages, [0] * stages]
        self.starts: list[list[int]] = [[] for _ in programs]
        self.ends: list[list[int]] = [[] for _ in programs]

    def run(self) -> Timing | None:
        ready = list(range(len(self.programs)))
        while ready:
            rank = ready.pop()
            for woken in self._advance(rank):
                if woken != rank and woken not in ready:
                    ready.append(woken)
        if any(len(ends) < len(program) for ends, program in zip(self.ends, self.programs, strict=True)):
            return None
        return Timing(self.starts, self.ends)

    def _advance(self, rank: int) -> set[int]:
        """Advances `rank` until an input is not known yet; returns the ranks that were sent a message."""
        problem, starts, ends = self.problem, self.starts[rank], self.ends[rank]
        took, message, placement, last = problem.took, problem.message, problem.placement, problem.stages - 1
        (fs, bs), acts, grads = self.done, self.acts, self.grads
        clock, woken, program = ends[-1] if ends else 0, set(), self.programs[rank]
        for i in range(len(ends), len(program)):
            stage, kind = program[i] >> 2, program[i] & 3
            start = clock
            if kind != W:
                known, done = (acts[stage], fs) if kind == F else (grads[stage], bs)
                if done[stage] >= len(known):
                    break
                start = max(clock, known[done[stage]])
                done[stage] += 1
            clock = start + took[kind][stage]
            starts.append(start)
            ends.append(clock)
            if kind == F:
                if stage == last:
                    grads[last].append(clock)
                else:
                    acts[stage + 1].append(clock + message[stage])
                    woken.add(placement[stage + 1])
            elif kind != W and stage:
                grads[stage - 1].append(clock + message[stage - 1])
                woken.add(placement[stage - 1])
        return woken


def critical(problem: Problem, programs: Programs, found: Timing) -> list[tuple[int, int, int]]:
    """Blocks (rank, first, last) of adjacent operations on a critical path of the step, last block first.

    The step cannot become shorter unless the order inside one of them changes (Nowicki and Smutnicki 1996, section 3).
    """
    ends, starts, at = found.ends, found.starts, _Positions.of(problem, programs)
    ranks = range(len(programs))
    spans = [ends[r][-1] - (0 if problem.barrier else starts[r][0]) for r in ranks]
    rank = max(ranks, key=spans.__getitem__)
    i, blocks = len(programs[rank]) - 1, []
    while True:
        first = i
        while first and ends[rank][first - 1] == starts[rank][first]:
            first -= 1
        blocks.append((rank, first, i))
        source = _source(problem, programs[rank][first], at.numbers[rank][first])
        if source is None:
            return blocks
        stage, kind, number = source
        rank = problem.placement[stage]
        i = (at.forward if kind == F else at.backward)[stage][number]


def _source(problem: Problem, token: int, number: int) -> tuple[int, int, int] | None:
    """(stage, F or B, micro-batch) that an operation depends on; None for F of the first stage, and for W."""
    stage, kind = token >> 2, token & 3
    if kind == W or (kind == F and stage == 0):
        return None
    if kind == F:
        return stage - 1, F, number
    return (stage, F, number) if stage == problem.stages - 1 else (stage + 1, B, number)


class _Positions(NamedTuple):
    """`numbers[rank][i]`: micro-batch of an operation; `forward[stage][n]`, `backward[stage][n]`: its index."""

    numbers: list[list[int]]
    forward: list[list[int]]
    backward: list[list[int]]

    @classmethod
    def of(cls, problem: Problem, programs: Programs) -> _Positions:
        made = cls([], [[] for _ in range(problem.stages)], [[] for _ in range(problem.stages)])
        for program in programs:
            own = []
            for i, token in enumerate(program):
                stage, kind = token >> 2, token & 3
                listed = made.forward[stage] if kind == F else made.backward[stage]
                own.append(len(listed))
                if kind != W:
                    listed.append(i)
            made.numbers.append(own)
        return made
