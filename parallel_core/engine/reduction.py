"""Sums gradients over the replicas of a stage, in buckets that start while backward is still running.

A bucket is a slice of the flat gradient buffer, so nothing is copied (Li et al. 2020, "PyTorch Distributed", section
3.2: buckets in the order in which backward finishes them, launched from hooks). In shared memory (`host_group`),
which has no background thread, a bucket that was launched is summed when it is waited for. Gradients are added, not
averaged: they belong to parts of a loss that is already divided by the global count.

Under ZeRO-1 (Rajbhandari et al. 2020, section 5.1) a bucket is reduce-scattered: a replica gets the sums of the part
it owns, updates that part, and gathers the parameters that the others have updated. ZeRO-2 is in `zero2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from parallel_core.engine.collectives import Group, all_gather, all_reduce, reduce_scatter
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.injected import late
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.plan.grad_buckets import Bucket as Place
from parallel_core.schedule.ir import Kind


class Reducer(Protocol):
    """Reduces gradients over replicas."""

    def begin_step(self) -> None:
        """Begins a step, before its first backward."""

    def finish(self) -> int:
        """Waits, after the last backward, until this replica's own part is summed; returns the bytes reduced."""

    def gather(self) -> int:
        """All-gathers the updated parameters; returns the bytes gathered."""


class _Bucket:
    """A slice of the gradients; `missing` arrivals are left until it holds this rank's sums of the whole step."""

    def __init__(self, grads: Tensor, part: Tensor, arrivals: int) -> None:
        self.grads, self.part, self.arrivals, self.missing = grads, part, arrivals, 0


class GradientReducer:
    """Reduces buckets of the gradients (no ZeRO, or ZeRO-1). With `group` None it does nothing.

    `arrivals`: how often each gradient is added to in a step. Each arrival is counted, so a bucket starts as early as
    possible under any schedule: after the last BW, or after the last W where it holds weights of linear layers and
    backward is split. Each collective is delayed by `delay` seconds.
    """

    def __init__(
        self,
        flat: FlatParameters,
        arrivals: Mapping[nn.Parameter, int],
        group: Group,
        scope: Scope,
        delay: float = 0.0,
    ) -> None:
        self._flat, self._group, self._scope, self._delay = flat, group, scope, delay
        self._begun: list[tuple[Any, Any, int]] = []
        self._order: dict[_Bucket, None] = {}
        """Buckets in the order in which they were last started."""
        self._buckets: list[_Bucket] = []
        self._home: dict[nn.Parameter, _Bucket] = {}
        if group is None:
            return
        parameters = {slot.name: slot.parameter for slot in flat}
        for place, part in self._sums():
            held = [parameters[name] for name in place.names]
            grads = flat.grads[place.start : place.stop]
            bucket = _Bucket(grads, flat.grads[part], sum(arrivals[parameter] for parameter in held))
            self._buckets.append(bucket)
            for parameter in held:
                self._home[parameter] = bucket
                parameter.register_post_accumulate_grad_hook(self.arrived)

    def _sums(self) -> list[tuple[Place, slice]]:
        """Returns each slice that is reduced at a time, and the part of it that this replica owns.

        On a CPU only communication between hosts overlaps with computation: there slices are smaller, so that the
        first ones start early.
        """
        wired = self._flat.grads.device.type == "cpu" and isinstance(self._group, dist.ProcessGroup)
        if wired and not self._flat.sharded:
            return [(piece, slice(piece.start, piece.stop)) for piece in self._flat.wired]
        return list(zip(self._flat.buckets, self._flat.parts, strict=True))

    def begin_step(self) -> None:
        for bucket in self._buckets:
            bucket.missing = bucket.arrivals

    def arrived(self, parameter: nn.Parameter) -> None:
        """Counts an addition to the gradient of `parameter`; launches its bucket at the last one."""
        bucket = self._home.get(parameter)
        if bucket is None:
            return
        bucket.missing -= 1
        if not bucket.missing:
            self._order.pop(bucket, None)
            self._order[bucket] = None
            self._begin(bucket)

    def _begin(self, bucket: _Bucket) -> None:
        start = self._scope.mark()
        if len(bucket.part) == len(bucket.grads):
            work = all_reduce(bucket.grads, self._group)
        else:
            work = reduce_scatter(bucket.part, bucket.grads, self._group)
        self._begun.append((start, late(work, self._delay), bucket.grads.nbytes))

    def finish(self) -> int:
        """Waits until the gradients are summed; returns the bytes reduced.

        A replica that had no micro-batch in a short round contributes zeros, in the order in which the others start
        their buckets.
        """
        for bucket in self._order:
            if bucket.missing and bucket.missing == bucket.arrivals:
                bucket.missing = 0
                self._begin(bucket)
        for start, work, moved in self._begun:
            work.wait()
            self._scope.span(Kind.BUCKET, LANE_COLLECTIVE, start, moved)
            self._scope.moved()
        total = sum(moved for _, _, moved in self._begun)
        self._begun.clear()
        return total

    def gather(self) -> int:
        """All-gathers the updated parameters; returns the bytes of all of them."""
        return gather(self._flat, self._group, self._delay, self._scope.moved)


def gather(flat: FlatParameters, group: Group, delay: float, moved: Callable[[], object]) -> int:
    """All-gathers the updated parameters of every replica, each message delayed by `delay` seconds; calls `moved` after
    each bucket; returns their bytes."""
    begun = [
        late(
            all_gather(flat.values[place.start : place.stop], flat.values[part], group),
            delay,
        )
        for place, part in zip(flat.buckets, flat.parts, strict=True)
    ]
    for work in begun:
        work.wait()
        moved()
    return flat.values.nbytes
