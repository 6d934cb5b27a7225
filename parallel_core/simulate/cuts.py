"""Where to cut a model into the stages of its schedule: so that the simulated step is the shortest.

The largest stage sets the pace of a line, which `plan.partition` minimises. Where a rank holds several stages, as in a
loop or a V, their sum does, and waits between them: so the whole step is asked, cuts being moved a layer at a time from
where the FLOPs are even until no move makes it shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parallel_core.layout import Layout
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

Cuts = tuple[int, ...]
FEW = 8
"""Cuts of which any two may move at once."""


class Best(NamedTuple):
    """`spec` with the cuts that were found, its predicted step, and that of the cuts it began with."""

    spec: RunSpec
    seconds: float
    before: float


def best_cuts(spec: RunSpec, table: CostTable) -> Best:
    """Of the spec's schedule and model. Raises CannotPredict where the table has not what is needed."""
    units = len(spec.model.units())
    known: dict[Cuts, float] = {}

    def seconds(cuts: Cuts) -> float:
        if cuts not in known:
            known[cuts] = predict_step(_with(spec, cuts), table).seconds
        return known[cuts]

    first = best = tuple(stage[0] for stage in Layout.of(spec).stage_units[1:])
    while (near := min(_moves(best, units), key=seconds, default=best)) and seconds(near) < seconds(best):
        best = near
    return Best(_with(spec, best), seconds(best), seconds(first))


def _moves(cuts: Cuts, units: int) -> Iterator[Cuts]:
    """With one cut, or two, a layer further on or back: where layers are of two sizes, one move may help only
    together with another. Of many cuts the other one is the next."""
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
