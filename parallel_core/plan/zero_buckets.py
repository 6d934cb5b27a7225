"""Whole buckets of gradients that ZeRO-2 has while backward fills them, and of parameters that ZeRO-3 has while layers
run: their sizes layer by layer (see `engine.lean` and `engine.unshard`).

A bucket is there from the first gradient that is added to it until the next one is sent, or a backward begins to fill
its own: at most the one that fills, the one under way, and what comes out of that, its part. A matrix tied within the
rank keeps its own bucket open from the last layer to the first.

Of parameters those of the layer that runs are there: most in its backward, where its gradients are, too.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from parallel_core.plan.grad_buckets import TIED, Bucket, Places


class Turn(NamedTuple):
    """What torch's `fully_shard` makes of a layer when its turn comes: elements, of `params` and `grads` as of
    activations (`plan.fully_sharded`)."""

    params: int
    """Its parameters, padded."""
    earlier: int
    """Those of the layer before, whose gather is held in a forward until these are copied out of theirs."""
    ahead: int
    """Those of the layer that is gathered ahead while this one goes back."""
    behind: int
    """Gradients of the layer behind it, in their reduce-scatter until this one is through."""
    summed: tuple[int, int]
    """(gradients, what their sum is made in) when it is."""
    stays: bool
    """Its backward comes at once, before it is let go."""


class Whole(NamedTuple):
    """Elements at most: `at[unit]` while the layer's gradients come in, `before[unit]` until the first of them does,
    `resting` before the first of a backward, `rested` behind the first one of a step.
    `params[unit]` = those of parameters in the layer's backward, `shared` of which all layers have; {} where they are
    always there. `turns[unit]`: where torch gathers and sums instead."""

    at: Mapping[int, int]
    resting: int
    params: Mapping[int, int] = {}
    shared: int = 0
    before: Mapping[int, int] = {}
    rested: int = 0
    turns: Mapping[int, Turn] = {}


NOTHING = Whole({}, 0)
"""Without ZeRO-2 all gradients lie in the flat buffer."""


def whole_buckets(
    places: Places,
    stages: Mapping[int, Mapping[int, list[str]]],
    shards: int,
    times: int,
    late: Container[str] | None = None,
) -> Whole:
    """Of a rank whose stages (number -> unit -> its parameters) lie at `places`.

    A step fills a bucket so many `times`; what comes out behind the first is added to what is there. A layer needs most
    when its last parameter's gradient, the first in its backward, has come. `late` = parameters whose gradients W makes
    where backward is in two: a bucket without any is sent in B, and what W sends last is under way until then.
    """
    part = 1 / shards if times > 1 else 0.0
    rows = [_in_stage(places, stage) for stage in range(len(stages))]
    resting = max((_size(_last(row, late)) for row in rows if times > 1 or len(rows) > 1), default=0)
    open_too = _tied(places, [name for units in stages.values() for names in units.values() for name in names])
    at: dict[int, int] = {}
    before: dict[int, int] = {}
    for units, row in zip(stages.values(), rows, strict=True):
        last = next(iter(units))
        for unit, names in units.items():
            own = set(names if unit == last else names[-1:])
            # What is open all the time fills first of all in the head, when nothing is under way yet.
            filled = [i for i, b in enumerate(row) if own & {*b.names} and (unit == last or b is not open_too)]
            filling = max((_live(row, i, part, open_too) for i in filled), default=_size(open_too))
            at[unit] = max([filling, *(_sent(b, part, open_too) for b in row if b.names[-1] in names)])
            opened = sum(_size(row[i]) for i in filled if row[i].names[0] in names and row[i] is not open_too)
            before[unit] = filling - (opened if len(filled) == 1 else 0)
    always = _size(open_too) if len(rows) > 1 else 0
    most = round(resting * (1 + part * (times > 2))) + always
    return Whole(at, most, before=before, rested=resting + always)


def with_layers(found: Whole, places: Places, units: Mapping[int, list[str]], ahead: bool = False) -> Whole:
    """`found`, and the parameters that are whole in the backward of each of `units` (unit -> its parameters), ZeRO-3;
    with `ahead` those of the unit before it, whose backward is next, are on their way."""
    shared = _tied(places, [name for names in units.values() for name in names])
    there = {unit: {*names, *(units.get(unit - 1, ()) if ahead else ())} for unit, names in units.items()}
    params = {
        unit: sum(_size(b) for b in places.buckets if b is shared or names & {*b.names})
        for unit, names in there.items()
    }
    return found._replace(params=params, shared=_size(shared))


def _last(row: list[Bucket], late: Container[str] | None) -> Bucket:
    """The one that a backward, or W, sends last."""
    return next((b for b in reversed(row) if late is not None and any(name in late for name in b.names)), row[-1])


def _in_stage(places: Places, stage: int) -> list[Bucket]:
    return [bucket for bucket in places.buckets if bucket.stage == stage]


def _tied(places: Places, names: list[str]) -> Bucket | None:
    """The bucket of a matrix that two layers of the rank share."""
    return next((b for b in places.buckets if TIED in b.names), None) if names.count(TIED) > 1 else None


def _live(row: list[Bucket], i: int, part: float, open_too: Bucket | None) -> int:
    """While bucket `i` of a stage fills: itself, the one before it under way, and one that is `open_too`."""
    under_way = _size(row[i - 1]) if i else 0
    return round(_size(row[i]) + under_way * (1 + part)) + (_size(open_too) if open_too is not row[i] else 0)


def _sent(bucket: Bucket, part: float, open_too: Bucket | None) -> int:
    """When the last gradient of a bucket is in: the one before it is through, and what will come out is there."""
    return round(_size(bucket) * (1 + part)) + (_size(open_too) if open_too is not bucket else 0)


def _size(bucket: Bucket | None) -> int:
    return bucket.stop - bucket.start if bucket else 0
