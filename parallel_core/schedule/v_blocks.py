"""V-Half and V-Min (Qi et al. 2024b, section 3): a building block of one micro-batch, repeated every six slots.

A rank holds two chunks placed as a V. The block says when each place does F, B and W of both; a micro-batch is kept on
a place from its F to its B, so short offsets between neighbours mean little memory. The sum of the four offsets (F down
the V, F up, B down, B up) is 12 for ZB-V, 6 for V-Half and 4 for V-Min, and the two chunks of a place balance each
other: activations are about a half and a third of 1F1B's. Where T_F, T_B and T_W differ the bubble grows with m.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import NamedTuple

from parallel_core.schedule.ir import Kind
from parallel_core.schedule.runs import Run

_PERIOD = 6
"""Slots of one micro-batch on a place: F, B and W of two chunks."""


def v_half(place: int, pp: int, micro_batches: int) -> list[Run]:
    """A place of V-Half, which holds stages s and 2p - 1 - s."""
    return _repeated(_block(pp, (2, 1, 2, 1))[place], micro_batches)


def v_min(place: int, pp: int, micro_batches: int) -> list[Run]:
    """A place of V-Min, which holds stages s and 2p - 1 - s."""
    return _repeated(_block(pp, (1, 1, 1, 1))[place], micro_batches)


class _Pass(NamedTuple):
    """An operation of micro-batch 0 on a place, and its time slot."""

    slot: int
    kind: Kind
    stage: int


def _repeated(passes: tuple[_Pass, ...], micro_batches: int) -> list[Run]:
    """The block once for each micro-batch, each one period later than the one before; only the order is kept."""
    begins = {one: one.slot // _PERIOD for one in passes}
    edges = sorted({period + more for period in begins.values() for more in (0, micro_batches)})
    found = []
    for begin, end in pairwise(edges):
        active = [one for one in passes if begins[one] <= begin < begins[one] + micro_batches]
        active.sort(key=lambda one: one.slot % _PERIOD)
        found.append(Run(end - begin, tuple((one.kind, one.stage) for one in active)))
    return [run for run in found if run.passes]


@cache
def _block(pp: int, offsets: tuple[int, int, int, int]) -> tuple[tuple[_Pass, ...], ...]:
    """The passes of each place, with the least gaps at the three turns so that no two share a slot modulo the
    period."""
    for gaps in sorted(product(range(1, _PERIOD + 1), repeat=3), key=lambda gaps: (sum(gaps), gaps)):
        starts = _starts(pp, offsets, gaps)
        if all(len({slot % _PERIOD for slot in place}) == len(place) for place in starts):
            return tuple(_with_weights(pp, place, slots) for place, slots in enumerate(starts))
    raise ValueError(f"no building block with offsets {offsets} fits {pp} places.")


def _starts(pp: int, offsets: tuple[int, int, int, int], gaps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """[place] -> slots of the first chunk's F, the second's F, the second's B and the first's B."""
    legs, first = [], 0
    for offset, gap, forth in zip(offsets, (*gaps, 0), (True, False, True, False), strict=True):
        legs.append([first + offset * (place if forth else pp - 1 - place) for place in range(pp)])
        first += offset * (pp - 1) + gap
    return list(zip(*legs, strict=True))


def _with_weights(pp: int, place: int, slots: tuple[int, ...]) -> tuple[_Pass, ...]:
    """The four passes, and each W in the first slot after its B that is free in every period."""
    near, far = place, 2 * pp - 1 - place
    stages = (near, far, far, near)
    passes = [_Pass(slot, Kind.F if leg < 2 else Kind.B, stages[leg]) for leg, slot in enumerate(slots)]
    taken = {slot % _PERIOD for slot in slots}
    for leg in (2, 3):
        slot = next(s for s in range(slots[leg] + 1, slots[leg] + 1 + _PERIOD) if s % _PERIOD not in taken)
        taken.add(slot % _PERIOD)
        passes.append(_Pass(slot, Kind.W, stages[leg]))
    return tuple(passes)
