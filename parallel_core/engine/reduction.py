"""Gradients summed over the replicas of a stage, in buckets that start while backward is still running.

A bucket is a slice of the flat gradient buffer (Li et al. 2020, "PyTorch Distributed", section 3.2: buckets in the
order in which backward finishes them, launched from hooks), so nothing is copied. Through memory (`host_group`), which
has nobody in the background, a bucket that was launched is summed when it is waited for. Gradients are sums of parts of
a loss that is already divided by the global count: they are added, not averaged.

Under ZeRO-1 (Rajbhandari et al. 2020, section 5.1) a bucket is reduce-scattered: a replica gets the sums of the part it
owns, updates that part, and gathers the parameters that the others have updated. ZeRO-2 is in `lean`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """`begin_step` before the first backward of a step, `finish` behind the last: then what a replica owns is the sum,
    of so many bytes. `gather` sends every replica's part of the parameters to all of them."""

    def begin_step(self) -> None: ...
    def finish(self) -> int: ...
    def gather(self) -> int: ...


class _Bucket:
    """A slice of the gradients; `missing` arrivals are left until it holds the sums of the whole step."""

    def __init__(self, grads: Tensor, part: Tensor, arrivals: int) -> None:
        self.grads, self.part, self.arrivals, self.missing = grads, part, arrivals, 0


class GradientReducer:
    """`begin_step` before the first backward of a step, `finish` behind the last. With `group` None it does nothing.

    `arrivals` says how often in a step each gradient is added to. Each arrival is counted, so a bucket starts as soon
    as it can, whatever the order of the schedule: behind the last BW, or where it holds weights behind the last W.
    Each collective ends `delay` seconds late.
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
        """Buckets in the order in which they were last begun."""
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
        """Each part of the buffer that is summed at a time, and what this replica owns of it. On a CPU only what goes
        over a wire goes on while a core computes: there parts are small, so that the first ones start early."""
        wired = self._flat.grads.device.type == "cpu" and isinstance(self._group, dist.ProcessGroup)
        if wired and not self._flat.sharded:
            return [(piece, slice(piece.start, piece.stop)) for piece in self._flat.wired]
        return list(zip(self._flat.buckets, self._flat.parts, strict=True))

    def begin_step(self) -> None:
        for bucket in self._buckets:
            bucket.missing = bucket.arrivals

    def arrived(self, parameter: nn.Parameter) -> None:
        """The gradient of `parameter` was added to; of the last in a bucket, launches it."""
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
        """Wait until the gradients are the sums; returns the bytes that were reduced.

        A replica that had no micro-batch in a short round adds zeros, in the order in which the others begin.
        """
        for bucket in self._order:
            if bucket.missing and bucket.missing == bucket.arrivals:
                bucket.missing = 0
                self._begin(bucket)
        for start, work, moved in self._begun:
            work.wait()
            self._scope.span(Kind.BUCKET, LANE_COLLECTIVE, start, moved)
        total = sum(moved for _, _, moved in self._begun)
        self._begun.clear()
        return total

    def gather(self) -> int:
        """Every replica's part of the parameters to all of them; returns the bytes of the whole."""
        return gather(self._flat, self._group, self._delay)


def gather(flat: FlatParameters, group: Group, delay: float) -> int:
    """Every replica's part of the parameters to all of them, each message `delay` late; returns the bytes of the
    whole."""
    begun = [
        late(
            all_gather(flat.values[place.start : place.stop], flat.values[part], group),
            delay,
        )
        for place, part in zip(flat.buckets, flat.parts, strict=True)
    ]
    for work in begun:
        work.wait()
    return flat.values.nbytes
