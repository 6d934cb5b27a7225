"""ZeRO-3: a replica keeps only its part of the parameters (Rajbhandari et al. 2020, section 5.3).

Each layer is one bucket. It is gathered from all replicas before the layer's forward and freed after it, gathered again
when the gradient of the layer's output arrives, and freed when the last of the layer's gradients is complete: every
operation that reads a parameter in backward also contributes to its gradient. Gradients are handled as in `zero2`.

On CUDA, where a collective overlaps with computation, the neighbouring layer is prefetched while a layer runs: the next
one in forward, the previous one in backward (`plan.grad_buckets.GATHERS_AHEAD`). Its span is the wait for it, before
which it is in flight.

Two kinds of layers are not gathered twice, since their backward follows at once: a layer that is recomputed, and the
last one. A matrix that two layers share stays whole from the backward of the last to that of the first.

Autograd saves some parameters as views, which would keep a whole bucket in memory: such a view is replaced by its
position in the bucket (`view`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from parallel_core.engine.buffer_view import BufferView
from parallel_core.engine.collectives import Group, all_gather
from parallel_core.engine.flat import FlatParameters, placeholder
from parallel_core.engine.injected import late
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.plan.grad_buckets import Bucket
from parallel_core.schedule.ir import Kind


class _ParameterBucket:
    """A bucket: the part owned by this replica, and (parameter, its first element in the bucket) of each of its
    parameters."""

    def __init__(self, place: Bucket, part: Tensor, parameters: Sequence[tuple[nn.Parameter, int]]) -> None:
        self.size, self.part, self.parameters = place.stop - place.start, part, parameters
        self.empty = [placeholder(part, parameter.shape) for parameter, _ in parameters]
        self.whole: Tensor | None = None
        self.coming: _Pending | None = None


class _Pending(NamedTuple):
    """A gather in flight: its start time, its work, and the buffer that it fills."""

    start: Any
    work: Any
    whole: Tensor


class _View(NamedTuple):
    """A saved tensor, as a position in the memory of a bucket."""

    bucket: _ParameterBucket
    view: BufferView

    def tensor(self) -> Tensor:
        assert self.bucket.whole is not None
        return self.view.within(self.bucket.whole)


class Unsharding(Protocol):
    """Gathers the parameters of layers: `run` runs one layer, within a pass `through` several of them."""

    def run(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor: ...
    def through(self, walk: Callable[[], Tensor]) -> Tensor: ...


class Unsharder:
    """Gathers the parameters of each layer for as long as it runs. Every replica must run the same layers in the same
    order."""

    def __init__(
        self,
        flat: FlatParameters,
        group: Group,
        scope: Scope,
        delay: float = 0.0,
        ahead: Sequence[nn.Module] = (),
    ) -> None:
        """`ahead`: layers in order, whose successor or predecessor is prefetched while one runs; empty: no prefetch."""
        self._after, self._before = dict(pairwise(ahead)), dict(pairwise(reversed(ahead)))
        self._group, self._scope, self._delay = group, scope, delay
        slots = {slot.name: slot for slot in flat}
        self._buckets = [
            _ParameterBucket(
                place, part, [(slots[name].parameter, slots[name].start - place.start) for name in place.names]
            )
            for place, part in zip(flat.buckets, flat.held, strict=True)
        ]
        self._home = {parameter: bucket for bucket in self._buckets for parameter, _ in bucket.parameters}

    def run(self, unit: nn.Module, inputs: Sequence[Tensor], goes_back: bool) -> Tensor:
        """Returns the layer's output. `goes_back`: its backward comes next, so its parameters stay gathered."""
        held = self._gather(unit)
        if goes_back:
            self._prefetch(self._before.get(unit))
            made: Tensor = unit(*inputs)
            return made
        self._prefetch(self._after.get(unit))
        with torch.autograd.graph.saved_tensors_hooks(partial(_pack, held), _unpack):
            out: Tensor = unit(*inputs)
        if out.requires_grad:
            out.register_hook(lambda _: self._gather_again(unit))
        for bucket in held:
            self._free(bucket)
        return out

    def through(self, walk: Callable[[], Tensor]) -> Tensor:
        """Runs a forward pass through several layers."""
        return walk()

    def done(self, number: int) -> None:
        """Frees the parameters of bucket `number`, which has all gradients of a micro-batch."""
        self._free(self._buckets[number])

    def _gather(self, unit: nn.Module) -> list[_ParameterBucket]:
        """Makes the layer's parameters whole; returns their buckets."""
        held = self._buckets_of(unit)
        for bucket in held:
            if bucket.whole is None:
                self._end(bucket)
        return held

    def _buckets_of(self, unit: nn.Module) -> list[_ParameterBucket]:
        return list(dict.fromkeys(self._home[parameter] for parameter in unit.parameters()))

    def _prefetch(self, unit: nn.Module | None) -> None:
        """Starts gathering the layer's parameters, for a later `_gather`."""
        for bucket in self._buckets_of(unit) if unit is not None else ():
            if bucket.whole is None:
                self._begin(bucket)

    def _gather_again(self, unit: nn.Module) -> None:
        """Gathers the layer again before its backward; also prefetches the layer before it."""
        self._gather(unit)
        self._prefetch(self._before.get(unit))

    @torch.no_grad()
    def _begin(self, bucket: _ParameterBucket) -> _Pending:
        if bucket.coming is not None:
            return bucket.coming
        start = self._scope.mark()
        with self._scope.making("params"):
            whole = bucket.part.new_empty(bucket.size)
        with self._scope.named(Kind.UNSHARD.name):
            work = late(all_gather(whole, bucket.part, self._group), self._delay)
        bucket.coming = _Pending(start, work, whole)
        return bucket.coming

    @torch.no_grad()
    def _end(self, bucket: _ParameterBucket) -> None:
        """Waits for the bucket's gather, begun ahead or now. The wait is recorded, and before it the flight of one that
        was begun ahead: in that the rank waits for nobody, and from its begin no other rank waits for this one."""
        ahead = bucket.coming is not None
        begun, work, whole = self._begin(bucket)
        bucket.coming = None
        start = self._scope.mark() if ahead else begun
        if ahead:
            self._scope.span(Kind.UNSHARD_FLIGHT, LANE_COLLECTIVE, begun, end=start)
        work.wait()
        for parameter, at in bucket.parameters:
            parameter.data = whole[at : at + parameter.numel()].view(parameter.shape)
        bucket.whole = whole
        self._scope.span(Kind.UNSHARD, LANE_COLLECTIVE, start, whole.nbytes)

    @staticmethod
    def _free(bucket: _ParameterBucket) -> None:
        for (parameter, _), nothing in zip(bucket.parameters, bucket.empty, strict=True):
            parameter.data = nothing
        bucket.whole = None


def _pack(held: Sequence[_ParameterBucket], saved: Tensor) -> Tensor | _View:
    """Returns what is saved of a tensor for the backward: a position, where it lies in one of the buckets."""
    for bucket in held:
        if bucket.whole is not None and (view := BufferView.of(saved, bucket.whole)) is not None:
            return _View(bucket, view)
    return saved


def _unpack(kept: Tensor | _View) -> Tensor:
    return kept.tensor() if isinstance(kept, _View) else kept
