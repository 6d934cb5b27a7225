"""Micro-batches for which a rank keeps tensors, counted from its program, without closed forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from parallel_core.schedule.ir import Kind, Program, Schedule


class Held(NamedTuple):
    """Micro-batches held at one moment, counted once for each stage."""

    forward: int
    """F done, B not: their activations are kept."""
    weights: int
    """B done, W not: what the weight gradients need is kept."""


def states(program: Program, stage: int | None = None) -> Iterator[Held]:
    """Micro-batches held after each compute operation of `program`: of `stage`, or of all stages on the rank (None)."""
    forward = weights = 0
    for op in program:
        for part in op.parts():
            if stage is not None and part.stage != stage:
                continue
            forward += (part.kind is Kind.F) - (part.kind in (Kind.B, Kind.BW))
            weights += (part.kind is Kind.B) - (part.kind is Kind.W)
            yield Held(forward, weights)


_FORWARD = {Kind.F: 1, Kind.B: -1, Kind.BW: -1}
_KEPT = {Kind.F: 1, Kind.W: -1, Kind.BW: -1}


def _peak(program: Program, changes: Mapping[Kind, int]) -> int:
    parts = (part.kind for op in program for part in (op.parts() if op.partner else (op,)))
    return max(accumulate(changes.get(kind, 0) for kind in parts), default=0)


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """For each pipeline rank, the most micro-batches with F done but not B at one time, over all its stages."""
    return tuple(_peak(program, _FORWARD) for program in schedule.programs)


def peak_kept(schedule: Schedule) -> tuple[int, ...]:
    """For each pipeline rank, the most micro-batches with F done but not all gradients, over all its stages."""
    return tuple(_peak(program, _KEPT) for program in schedule.programs)


def peak_copies(program: Program) -> int:
    """The most old weight versions that are stashed at one time."""
    return max(accumulate((op.kind is Kind.STASH) - (op.kind is Kind.DROP) for op in program), default=0)
