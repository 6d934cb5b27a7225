"""Cuts of a model into the stages of its schedule that minimise the simulated step.

In a line the largest stage sets the pace, which `plan.partition` minimises. Where a rank holds several stages (loop or
V), their sum and the waits between them matter, so the whole step is simulated: starting from cuts with even FLOPs,
cuts move by one layer at a time until no move makes the step shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from parallel_core.layout import Layout
from parallel_core.profile.table import CostTable
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

Cuts = tuple[int, ...]
FEW = 8
"""With fewer cuts than this any two may move at once."""


class Best(NamedTuple):
    """`spec` with the cuts found, its predicted step in seconds, and that of the initial cuts."""

    spec: RunSpec
    seconds: float
    before: float


def best_cuts(spec: RunSpec, table: CostTable, where: Where = ALONE, most: float = inf) -> Best:
    """The best cuts found for the spec's schedule and model, with ranks on the hosts of `where`; the search ends with
    the moves that follow after `most` predictions. Raises CannotPredict."""
    units = len(spec.model.units())
    known: dict[Cuts, float] = {}

    def seconds(cuts: Cuts) -> float:
        if cuts not in known:
            known[cuts] = predict_step(_with(spec, cuts), table, where=where).seconds
        return known[cuts]

    first = best = tuple(stage[0] for stage in Layout.of(spec).stage_units[1:])
    while (near := min(_moves(best, units), key=seconds, default=best)) and seconds(near) < seconds(best):
        best = near
        if len(known) >= most:
            break
    return Best(_with(spec, best), seconds(best), seconds(first))


def _moves(cuts: Cuts, units: int) -> Iterator[Cuts]:
    """Cuts with one or two of them moved by one layer: with layers of two sizes, one move may help only together with
    another. With FEW cuts or more, the second one is the next cut."""
    reach = len(cuts) if len(cuts) < FEW else 2
    steps = [(i, by) for i in range(len(cuts)) for by in (-1, 1)]
    for i, by in steps:
        one = (*cuts[:i], cuts[i] + by, *cuts[i + 1 :])
        for j, also in ((i, 0), *((j, also) for j, also in steps if i < j < i + reach)):
            moved = (*one[:j], one[j] + also, *one[j + 1 :])
            if all(a < b for a, b in zip((0, *moved), (*moved, units), strict=True)):
                yield moved


def _with(spec: RunSpec, cuts: Cuts) -> RunSpec:
    split = spec.parallel.model_dump() | {"cuts": cuts or None}
    return RunSpec.model_validate(spec.model_dump() | {"parallel": split})
