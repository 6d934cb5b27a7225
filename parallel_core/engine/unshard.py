"""ZeRO-3: a replica keeps its part of the parameters alone (Rajbhandari et al. 2020, section 5.3).

A bucket is a layer. It is gathered from all replicas before the layer's forward and let go behind it, gathered again
when the gradient of the layer's output has come, and let go when the last of the layer's gradients is in: whatever
needs a parameter's values in backward makes its gradient, too. What `lean` does for gradients is the rest of it.

Two layers are spared a second gather: one that is recomputed goes backward at once, and so does the last one. A matrix
that two layers share stays from the backward of the last to that of the first.

Autograd saves some parameters as views of their memory, which would keep all of it: what it saves of a bucket is kept
as a place in it (`spot`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from parallel_core.engine.collectives import Group, all_gather
from parallel_core.engine.flat import FlatParameters, hollow
from parallel_core.engine.injected import late
from parallel_core.engine.spot import Spot
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.plan.places import Bucket
from parallel_core.schedule.ir import Kind


class _Gathered:
    """A bucket: the part of this replica, and its parameters, each with where it begins in the whole."""

    def __init__(self, place: Bucket, part: Tensor, parameters: Sequence[tuple[nn.Parameter, int]]) -> None:
        self.size, self.part, self.parameters = place.stop - place.start, part, parameters
        self.empty = [hollow(part, parameter.shape) for parameter, _ in parameters]
        self.whole: Tensor | None = None


class _View(NamedTuple):
    """A tensor in the memory of a bucket."""

    bucket: _Gathered
    spot: Spot

    def tensor(self) -> Tensor:
        assert self.bucket.whole is not None
        return self.spot.within(self.bucket.whole)


class Unsharding(Protocol):
    """Who makes the parameters of layers whole: `run` one, inside of a pass `through` several of them."""

    def run(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor: ...
    def through(self, walk: Callable[[], Tensor]) -> Tensor: ...


class Unsharder:
    """Whole parameters of layers for as long as they are at work. Every replica runs the same layers in one order."""

    def __init__(self, flat: FlatParameters, group: Group, scope: Scope, delay: float = 0.0) -> None:
        self._group, self._scope, self._delay = group, scope, delay
        slots = {slot.name: slot for slot in flat}
        self._buckets = [
            _Gathered(place, part, [(slots[name].parameter, slots[name].start - place.start) for name in place.names])
            for place, part in zip(flat.buckets, flat.held, strict=True)
        ]
        self._home = {parameter: bucket for bucket in self._buckets for parameter, _ in bucket.parameters}

    def run(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor:
        """The layer's output. `goes_back`: its backward is the next thing, so its parameters stay until then."""
        held = self._take(unit)
        if goes_back:
            made: Tensor = unit(*inputs)
            return made
        with torch.autograd.graph.saved_tensors_hooks(partial(_pack, held), _unpack):
            out: Tensor = unit(*inputs)
        if out.requires_grad:
            out.register_hook(lambda _: self._again(unit))
        for bucket in held:
            self._let_go(bucket)
        return out

    def through(self, walk: Callable[[], Tensor]) -> Tensor:
        """A forward through several layers."""
        return walk()

    def done(self, number: int) -> None:
        """The last gradient of a micro-batch is in, of bucket `number`."""
        self._let_go(self._buckets[number])

    def _take(self, unit: nn.Module) -> list[_Gathered]:
        """Makes its parameters whole; the buckets they are in."""
        held = list(dict.fromkeys(self._home[parameter] for parameter in unit.parameters()))
        for bucket in held:
            if bucket.whole is None:
                self._gather(bucket)
        return held

    def _again(self, unit: nn.Module) -> None:
        """Before its backward; a gradient that is on its way to the layer stays as it is."""
        self._take(unit)

    @torch.no_grad()
    def _gather(self, bucket: _Gathered) -> None:
        start = self._scope.mark()
        with self._scope.making("params"):
            whole = bucket.part.new_empty(bucket.size)
        with self._scope.named(Kind.UNSHARD.name):
            late(all_gather(whole, bucket.part, self._group), self._delay).wait()
        for parameter, at in bucket.parameters:
            parameter.data = whole[at : at + parameter.numel()].view(parameter.shape)
        bucket.whole = whole
        self._scope.span(Kind.UNSHARD, LANE_COLLECTIVE, start, whole.nbytes)

    @staticmethod
    def _let_go(bucket: _Gathered) -> None:
        for (parameter, _), nothing in zip(bucket.parameters, bucket.empty, strict=True):
            parameter.data = nothing
        bucket.whole = None


def _pack(held: Sequence[_Gathered], saved: Tensor) -> Tensor | _View:
    """What is kept of a tensor for a backward."""
    for bucket in held:
        if bucket.whole is not None and (spot := Spot.of(saved, bucket.whole)) is not None:
            return _View(bucket, spot)
    return saved


def _unpack(kept: Tensor | _View) -> Tensor:
    return kept.tensor() if isinstance(kept, _View) else kept
