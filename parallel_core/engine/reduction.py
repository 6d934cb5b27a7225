"""Gradients summed over the replicas of a stage, in buckets that start while backward is still running.

A bucket is a slice of the flat gradient buffer (Li et al. 2020, "PyTorch Distributed", section 3.2: buckets in the
order in which backward finishes them, launched from hooks), so nothing is copied. Gradients are sums of parts of a loss
that is already divided by the global count: they are added, not averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.distributed import Group
from parallel_core.engine.flat import FlatParameters, Slot
from parallel_core.engine.stage import Segment
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


class _Bucket:
    """A slice of the gradients; `missing` hook calls are left until its last gradient is there."""

    def __init__(self, grads: Tensor, calls: int) -> None:
        self.grads, self.calls, self.missing = grads, calls, 0


class GradientReducer:
    """Arm it before the last backward of a step, `finish` it behind. With `group` None it does nothing."""

    def __init__(
        self, flat: FlatParameters, segments: Sequence[Segment], group: Group, bucket_bytes: int, scope: Scope
    ) -> None:
        self._group, self._scope = group, scope
        self._armed = False
        self._begun: list[tuple[Any, Any, int]] = []
        self._buckets: list[_Bucket] = []
        if group is None:
            return
        # A tied parameter's gradient comes once from each segment that uses it.
        calls = Counter(parameter for segment in segments for parameter in segment.parameters())
        for slots in _cut(flat, bucket_bytes):
            bucket = _Bucket(flat.grads[slots[0].start : slots[-1].stop], sum(calls[slot.parameter] for slot in slots))
            self._buckets.append(bucket)
            for slot in slots:
                slot.parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._arrived(bucket))

    def arm(self) -> None:
        """The next backward is the last of the step: launch each bucket as soon as it is complete."""
        self._armed = True
        for bucket in self._buckets:
            bucket.missing = bucket.calls

    def finish(self) -> int:
        """Wait until the gradients are the sums; returns the bytes that were reduced."""
        self._armed = False
        for start, work, moved in self._begun:
            work.wait()
            self._scope.span(Kind.BUCKET, LANE_COLLECTIVE, start, moved)
        total = sum(moved for _, _, moved in self._begun)
        self._begun.clear()
        return total

    def _arrived(self, bucket: _Bucket) -> None:
        if not self._armed:
            return
        bucket.missing -= 1
        if not bucket.missing:
            start = self._scope.mark()
            work = dist.all_reduce(bucket.grads, group=self._group, async_op=True)
            self._begun.append((start, work, bucket.grads.numel() * bucket.grads.element_size()))


def _cut(flat: FlatParameters, bucket_bytes: int) -> list[list[Slot]]:
    """Neighbouring slots together until a bucket has `bucket_bytes`."""
    buckets: list[list[Slot]] = [[]]
    size = flat.grads.element_size()
    for slot in flat:
        if buckets[-1] and (slot.start - buckets[-1][0].start) * size >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(slot)
    return buckets
