"""Sizes, layer by layer, of the unsharded gradient buckets that exist under ZeRO-2 while backward fills them, and of
the unsharded parameters that exist under ZeRO-3 while layers run (see `engine.zero2` and `engine.zero3`).

A bucket exists from the first gradient added to it until the next one is reduced, or until a backward begins to fill
its own buckets: at most the bucket being filled, the one being reduced, and its result (one shard). A matrix tied
within the rank keeps its own bucket open from the last layer to the first.

Of the parameters, those of the running layer are unsharded; most in its backward, where its gradients exist as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Mapping
from typing import NamedTuple

from parallel_core.plan.grad_buckets import TIED, Bucket, Places


class Turn(NamedTuple):
    """Elements that torch's `fully_shard` holds for a layer while it runs; `params` and `grads` counted in elements of
    activations (`plan.fully_sharded`)."""

    params: int
    """Its parameters, padded."""
    earlier: int
    """Parameters of the layer before it: in a forward their gather buffer is held until this layer's are copied out."""
    ahead: int
    """Parameters of the layer that is prefetched during this layer's backward."""
    behind: int
    """Gradients of the layer after it, in their reduce-scatter until this layer's backward is done."""
    summed: tuple[int, int]
    """(gradients, buffer of their reduction) while they are reduced."""
    stays: bool
    """Its backward follows its forward at once, before the parameters are freed."""


class Whole(NamedTuple):
    """Unsharded gradient and parameter elements, by unit and moment.

    - `at[unit]`: gradient buckets while the layer's gradients come in
    - `sent[unit]`: when the last of them has come and a bucket is sent, {} where nothing is held for that
    - `before[unit]`: until the first of them does
    - `resting`: between backwards, before the first gradient
    - `rested`: between backwards, after the first one of a step
    - `params[unit]`: parameters in the layer's backward, {} where they are never sharded; `shared` of them belong to
      all layers
    - `in_b[unit]`: gradients while B computes those of the layer, where the backward is split in two
    - `turns[unit]`: where torch gathers and reduces instead
    """

    at: Mapping[int, int]
    resting: int
    params: Mapping[int, int] = {}
    shared: int = 0
    before: Mapping[int, int] = {}
    sent: Mapping[int, int] = {}
    rested: int = 0
    in_b: Mapping[int, int] = {}
    turns: Mapping[int, Turn] = {}


NOTHING = Whole({}, 0)
"""Without ZeRO-2 all gradients are in the flat buffer."""


def whole_buckets(
    places: Places,
    stages: Mapping[int, Mapping[int, list[str]]],
    shards: int,
    times: int,
    late: Container[str] | None = None,
) -> Whole:
    """Gradient buckets of a rank whose stages (stage -> unit -> its parameters) lie at `places`.

    A step fills each bucket `times` times; results after the first are added to the existing shard. A layer needs most
    when the gradient of its last parameter, the first in its backward, has come. `late`: parameters whose gradients W
    computes where the backward is split in two: a bucket without any is reduced in B, and the last bucket of W stays in
    flight until then. Other gradients of a bucket with some wait for W beside it.
    """
    part = 1 / shards if times > 1 else 0.0
    rows = [_in_stage(places, stage) for stage in range(len(stages))]
    resting = max((_size(_last(row, late)) for row in rows if times > 1 or len(rows) > 1), default=0)
    open_too = _tied(places, [name for units in stages.values() for names in units.values() for name in names])
    at: dict[int, int] = {}
    before: dict[int, int] = {}
    sent: dict[int, int] = {}
    in_b: dict[int, int] = {}
    for units, row in zip(stages.values(), rows, strict=True):
        stage, last = _Stage(row, part, open_too), next(iter(units))
        for unit, names in units.items():
            at[unit], before[unit], sent[unit] = stage.layer(names, ends=unit == last)
        in_b |= _in_b(places, units, row, part, late) if late is not None else {}
    always = _size(open_too) if len(rows) > 1 else 0
    most = round(resting * (1 + part * (times > 2))) + always
    return Whole(at, most, before=before, sent=sent, rested=resting + always, in_b=in_b)


def _in_b(
    places: Places, units: Mapping[int, list[str]], row: list[Bucket], part: float, late: Container[str]
) -> dict[int, int]:
    """`Whole.in_b` of a stage with the buckets `row`: those that B fills, and what waits for W of layers after it."""
    filled = [bucket for bucket in row if not any(name in late for name in bucket.names)]
    own = {name for bucket in filled for name in bucket.names}
    ends = sorted([*places.starts.values(), places.size])
    sizes = {name: ends[bisect_right(ends, start)] - start for name, start in places.starts.items()}
    found: dict[int, int] = {}
    waiting, in_flight = 0, 0
    for unit, names in reversed([*units.items()]):
        found[unit] = waiting + round(in_flight * (1 + part))
        for i, bucket in enumerate(filled):
            if own & {*names} & {*bucket.names}:
                before = _size(filled[i - 1]) if i else 0
                found[unit] = max(found[unit], waiting + round(_size(bucket) + before * (1 + part)))
                in_flight = _size(bucket)
        waiting += sum(sizes[name] for name in names if name not in late and name not in own)
    return found


class _Stage:
    """The gradient buckets of one stage in the order in which they fill. `part`: share of a bucket that the result of
    its reduction takes; `open_too`: the bucket of a tied matrix, which stays open."""

    def __init__(self, row: list[Bucket], part: float, open_too: Bucket | None) -> None:
        self._row, self._part, self._open_too = row, part, open_too

    def layer(self, names: list[str], ends: bool) -> tuple[int, int, int]:
        """Elements while the gradients of the layer with parameters `names` come in, before the first of them does, and
        when the last one of a bucket has; `ends`: its backward is the stage's last."""
        own = set(names if ends else names[-1:])
        # The tied bucket fills first, in the head, when no other one is being reduced yet.
        filled = [i for i, b in enumerate(self._row) if own & {*b.names} and (ends or b is not self._open_too)]
        filling = max(map(self._live, filled), default=_size(self._open_too))
        sent = max((self._sent(b) for b in self._row if b.names[-1] in names), default=0)
        opened = [b for b in (self._row[i] for i in filled) if b.names[0] in names and b is not self._open_too]
        return filling, filling - (sum(map(_size, opened)) if len(filled) == 1 else 0), sent

    def _live(self, i: int) -> int:
        """Elements while bucket `i` fills: itself, the previous one being reduced, and the open tied bucket."""
        under_way = _size(self._row[i - 1]) if i else 0
        return round(_size(self._row[i]) + under_way * (1 + self._part)) + self._beside(self._row[i])

    def _sent(self, bucket: Bucket) -> int:
        """Elements when a bucket's last gradient has come: the previous bucket is reduced, the own result's buffer
        exists."""
        return round(_size(bucket) * (1 + self._part)) + self._beside(bucket)

    def _beside(self, bucket: Bucket) -> int:
        """Elements of the open tied bucket, unless it is `bucket`."""
        return _size(self._open_too) if self._open_too is not bucket else 0


def with_layers(found: Whole, places: Places, units: Mapping[int, list[str]], ahead: bool = False) -> Whole:
    """`found` with the parameters that are unsharded in the backward of each of `units` (unit -> its parameters) under
    ZeRO-3; `ahead`: those of the unit before it, whose backward is next, are being prefetched."""
    shared = _tied(places, [name for names in units.values() for name in names])
    there = {unit: {*names, *(units.get(unit - 1, ()) if ahead else ())} for unit, names in units.items()}
    params = {
        unit: sum(_size(b) for b in places.buckets if b is shared or names & {*b.names})
        for unit, names in there.items()
    }
    return found._replace(params=params, shared=_size(shared))


def _last(row: list[Bucket], late: Container[str] | None) -> Bucket:
    """The bucket that a backward, or W, reduces last."""
    return next((b for b in reversed(row) if late is not None and any(name in late for name in b.names)), row[-1])


def _in_stage(places: Places, stage: int) -> list[Bucket]:
    return [bucket for bucket in places.buckets if bucket.stage == stage]


def _tied(places: Places, names: list[str]) -> Bucket | None:
    """The bucket of a matrix that two layers of the rank share; None if there is none."""
    return next((b for b in places.buckets if TIED in b.names), None) if names.count(TIED) > 1 else None


def _size(bucket: Bucket | None) -> int:
    return bucket.stop - bucket.start if bucket else 0
