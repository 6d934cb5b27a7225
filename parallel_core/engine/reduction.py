"""Gradients summed over the replicas of a stage, in buckets that start while backward is still running.

A bucket is a slice of the flat gradient buffer (Li et al. 2020, "PyTorch Distributed", section 3.2: buckets in the
order in which backward finishes them, launched from hooks), so nothing is copied. Gradients are sums of parts of a loss
that is already divided by the global count: they are added, not averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from parallel_core.engine.distributed import Group
from parallel_core.engine.flat import FlatParameters, Slot
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


class _Bucket:
    """A slice of the gradients; `missing` arrivals are left until it holds the sums of the whole step."""

    def __init__(self, grads: Tensor, arrivals: int) -> None:
        self.grads, self.arrivals, self.missing = grads, arrivals, 0


class GradientReducer:
    """`begin_step` before the first backward of a step, `finish` behind the last. With `group` None it does nothing.

    `arrivals` says how often in a step each gradient is added to. Each arrival is counted, so a bucket starts as soon
    as it can, whatever the order of the schedule: behind the last BW, or where it holds weights behind the last W.
    """

    def __init__(
        self,
        flat: FlatParameters,
        arrivals: Mapping[nn.Parameter, int],
        group: Group,
        bucket_bytes: int,
        scope: Scope,
    ) -> None:
        self._group, self._scope = group, scope
        self._begun: list[tuple[Any, Any, int]] = []
        self._buckets: list[_Bucket] = []
        self._home: dict[nn.Parameter, _Bucket] = {}
        if group is None:
            return
        for slots in _cut(flat, bucket_bytes):
            grads = flat.grads[slots[0].start : slots[-1].stop]
            bucket = _Bucket(grads, sum(arrivals[slot.parameter] for slot in slots))
            self._buckets.append(bucket)
            for slot in slots:
                self._home[slot.parameter] = bucket
                slot.parameter.register_post_accumulate_grad_hook(self.arrived)

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
            start = self._scope.mark()
            work = dist.all_reduce(bucket.grads, group=self._group, async_op=True)
            self._begun.append((start, work, bucket.grads.numel() * bucket.grads.element_size()))

    def finish(self) -> int:
        """Wait until the gradients are the sums; returns the bytes that were reduced."""
        for start, work, moved in self._begun:
            work.wait()
            self._scope.span(Kind.BUCKET, LANE_COLLECTIVE, start, moved)
        total = sum(moved for _, _, moved in self._begun)
        self._begun.clear()
        return total


def _cut(flat: FlatParameters, bucket_bytes: int) -> list[list[Slot]]:
    """Neighbouring slots together until a bucket has `bucket_bytes`."""
    buckets: list[list[Slot]] = [[]]
    size = flat.grads.element_size()
    for slot in flat:
        if buckets[-1] and (slot.start - buckets[-1][0].start) * size >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(slot)
    return buckets
