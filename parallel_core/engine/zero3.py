"""ZeRO-3: a replica keeps its part of the parameters alone (Rajbhandari et al. 2020, section 5.3).

A bucket is a layer. It is gathered from all replicas before the layer's forward and let go behind it, gathered again
when the gradient of the layer's output has come, and let go when the last of the layer's gradients is in: whatever
needs a parameter's values in backward makes its gradient, too. What `lean` does for gradients is the rest of it.

On CUDA, where a collective runs beside computation, the next layer is gathered while one works: forward the one behind
it, backward the one before it (`plan.places.GATHERS_AHEAD`).

Two layers are spared a second gather: one that is recomputed goes backward at once, and so does the last one. A matrix
that two layers share stays from the backward of the last to that of the first.

Autograd saves some parameters as views of their memory, which would keep all of it: what it saves of a bucket is kept
as a place in it (`spot`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from parallel_core.engine.collectives import Group, all_gather
from parallel_core.engine.flat import FlatParameters, hollow
from parallel_core.engine.injected import late
from parallel_core.engine.spot import Spot
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.plan.grad_buckets import Bucket
from parallel_core.schedule.ir import Kind


class _Gathered:
    """A bucket: the part of this replica, and its parameters, each with where it begins in the whole."""

    def __init__(self, place: Bucket, part: Tensor, parameters: Sequence[tuple[nn.Parameter, int]]) -> None:
        self.size, self.part, self.parameters = place.stop - place.start, part, parameters
        self.empty = [hollow(part, parameter.shape) for parameter, _ in parameters]
        self.whole: Tensor | None = None
        self.coming: _Coming | None = None


class _Coming(NamedTuple):
    """A gather under way: its start, what is waited for, and where everything comes in."""

    start: Any
    work: Any
    whole: Tensor


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

    def __init__(
        self,
        flat: FlatParameters,
        group: Group,
        scope: Scope,
        delay: float = 0.0,
        ahead: Sequence[nn.Module] = (),
    ) -> None:
        """`ahead`: layers in order, of which the next one, either way, is gathered while one works."""
        self._after, self._before = dict(pairwise(ahead)), dict(pairwise(reversed(ahead)))
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
            self._expect(self._before.get(unit))
            made: Tensor = unit(*inputs)
            return made
        self._expect(self._after.get(unit))
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
        held = self._buckets_of(unit)
        for bucket in held:
            if bucket.whole is None:
                self._begin(bucket)
                self._end(bucket)
        return held

    def _buckets_of(self, unit: nn.Module) -> list[_Gathered]:
        return list(dict.fromkeys(self._home[parameter] for parameter in unit.parameters()))

    def _expect(self, unit: nn.Module | None) -> None:
        """Its parameters set out, to be there when it is `_take`n."""
        for bucket in self._buckets_of(unit) if unit is not None else ():
            if bucket.whole is None:
                self._begin(bucket)

    def _again(self, unit: nn.Module) -> None:
        """Before its backward; a gradient that is on its way to the layer stays as it is."""
        self._take(unit)
        self._expect(self._before.get(unit))

    @torch.no_grad()
    def _begin(self, bucket: _Gathered) -> None:
        if bucket.coming is not None:
            return
        start = self._scope.mark()
        with self._scope.making("params"):
            whole = bucket.part.new_empty(bucket.size)
        with self._scope.named(Kind.UNSHARD.name):
            work = late(all_gather(whole, bucket.part, self._group), self._delay)
        bucket.coming = _Coming(start, work, whole)

    @torch.no_grad()
    def _end(self, bucket: _Gathered) -> None:
        assert bucket.coming is not None
        start, work, whole = bucket.coming
        bucket.coming = None
        work.wait()
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
