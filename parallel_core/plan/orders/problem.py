"""Input of an order search: times of every stage, messages between them, and how much each rank may keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite, isnan

from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.traits import Shape, place

F, B, W, BW = range(4)
"""Tokens of a program are stage * 4 + one of these; micro-batches of one stage and kind come in order."""
KINDS = (Kind.F, Kind.B, Kind.W, Kind.BW)
Programs = Sequence[Sequence[int]]
"""Tokens of each rank, in order."""


class OrderError(ValueError):
    """An impossible problem; the message names the field."""


@dataclass(frozen=True)
class Problem:
    """Nanoseconds of one micro-batch on every stage, and the memory it keeps there, in any unit.

    - `message[s]`: from stage s to s + 1, and of the gradient back; 0 where both are on one rank
    - `kept[s]`: kept from F to B; `needed[s]`: from B to W; `limit[r]` bounds their sum on rank r
    - `whole[s]`: the backward as one operation (usually B + W)
    - `barrier`: a step lasts from the first start to the last end, as where ranks wait for a gradient norm; without it,
      as long as the longest rank's own time (Qi et al. 2024a, section 4)
    """

    micro_batches: int
    placement: tuple[int, ...]
    forward: tuple[int, ...]
    grad: tuple[int, ...]
    weight: tuple[int, ...]
    whole: tuple[int, ...]
    message: tuple[int, ...]
    kept: tuple[float, ...]
    needed: tuple[float, ...]
    limit: tuple[float, ...]
    barrier: bool = True
    took: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    """[kind][stage] -> ns."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "took", (self.forward, self.grad, self.weight, self.whole))
        stages = len(self.placement)
        if self.micro_batches < 1 or not stages:
            raise OrderError("micro_batches: at least one micro-batch and one stage are needed.")
        for name in ("forward", "grad", "weight", "whole", "kept", "needed"):
            values = getattr(self, name)
            if len(values) != stages or any(value < 0 or not isfinite(value) for value in values):
                raise OrderError(f"{name}: {stages} stages need as many numbers, none below 0.")
        if len(self.message) != stages - 1 or any(value < 0 for value in self.message):
            raise OrderError(f"message: {stages} stages have {stages - 1} links, none below 0.")
        if len(self.limit) != self.ranks or any(map(isnan, self.limit)):
            raise OrderError(f"limit: {self.ranks} ranks need as many limits.")
        for rank, least in enumerate(self.least):
            if self.limit[rank] < least - 1e-9:
                raise OrderError(
                    f"limit: rank {rank} must keep at least {least:g}; {self.limit[rank]:g} is too little."
                )

    @classmethod
    def uniform(
        cls,
        ranks: int,
        micro_batches: int,
        times: tuple[float, float, float],
        message: float = 0,
        limit: float = inf,
        shape: Shape = "line",
        needed: float = 1.0,
        barrier: bool = True,
    ) -> Problem:
        """A problem with equal ranks. `times`: F, B, W of a rank's share of a micro-batch, divided by two stages in a
        `v`; `limit` in micro-batches of such a share; `needed`: the part of one that W still needs."""
        chunks = 2 if shape == "v" and ranks > 1 else 1
        stages = ranks * chunks
        f, b, w = ((round(time / chunks),) * stages for time in times)
        placement = tuple(place(shape, stage, ranks) for stage in range(stages))
        whole = tuple(map(sum, zip(b, w, strict=True)))
        links = tuple(0 if here == there else round(message) for here, there in pairwise(placement))
        share = (1 / chunks,) * stages
        kept = tuple(needed * part for part in share)
        return cls(micro_batches, placement, f, b, w, whole, links, share, kept, (limit,) * ranks, barrier)

    @property
    def stages(self) -> int:
        return len(self.placement)

    @cached_property
    def ranks(self) -> int:
        return max(self.placement) + 1

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank, ascending."""
        return tuple(tuple(s for s, home in enumerate(self.placement) if home == rank) for rank in range(self.ranks))

    @cached_property
    def least(self) -> tuple[float, ...]:
        """Memory that each rank needs at least, in the unit of `kept`: one micro-batch on all its stages."""
        return tuple(sum(max(self.kept[s], self.needed[s]) for s in own) for own in self.stages_of)

    def schedule(self, programs: Programs, name: str = "found") -> Schedule:
        """The compute-only schedule of these programs."""
        made = []
        for program in programs:
            count: dict[int, int] = {}
            ops = []
            for token in program:
                count[token] = count.get(token, 0) + 1
                ops.append(self._op(token, count))
            made.append(tuple(ops))
        placement = tuple((rank,) for rank in self.placement)
        return Schedule(name, self.stages, self.micro_batches, placement, tuple(made))

    def _op(self, token: int, count: dict[int, int]) -> Op:
        """The operation of a token; micro-batches are numbered over B and BW together, and over W and BW."""
        stage, kind = divmod(token, 4)
        number = count[token] - 1
        if kind in (B, W):
            number += count.get(stage * 4 + BW, 0)
        elif kind == BW:
            number += count.get(stage * 4 + B, 0)
        return Op(KINDS[kind], stage, number)


def tokens(schedule: Schedule) -> list[list[int]]:
    """Programs of a compute-only schedule of one replica without PAIRs, whose micro-batches come in order."""
    return [[op.stage * 4 + KINDS.index(op.kind) for op in program] for program in schedule.programs]


def peaks(problem: Problem, programs: Programs) -> list[float]:
    """The most that each rank keeps at once, in the unit of `Problem.kept`."""
    return [max(kept_after(problem, program), default=0.0) for program in programs]


def kept_after(problem: Problem, program: Sequence[int]) -> list[float]:
    """What a rank keeps at each operation: while F, W and BW run, and after B."""
    held, out = 0.0, []
    for token in program:
        stage, kind = divmod(token, 4)
        if kind == F:
            held += problem.kept[stage]
        elif kind == B:
            held += problem.needed[stage] - problem.kept[stage]
        out.append(held)
        if kind == W:
            held -= problem.needed[stage]
        elif kind == BW:
            held -= problem.kept[stage]
    return out
