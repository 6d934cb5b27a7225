"""ZeRO-2: a replica keeps only the gradients of the parts it owns (Rajbhandari et al. 2020, section 5.2).

A bucket is allocated when backward first adds to it, reduce-scattered when it has the last gradient of a micro-batch,
and freed. The result, this replica's part of the sum, is added to that of earlier micro-batches: gradients are
reduced over replicas first, then over micro-batches, so they are communicated once per micro-batch (as in DeepSpeed's
ZeRO-2). At most two buckets are whole at a time: one that fills and one in flight. A stage's backward first waits for
the bucket in flight, because memory is at its peak there.

What autograd adds while weight gradients are put off (`tensor.weights`), mostly of norms, waits in `parameter.grad`:
a bucket allocated in B would otherwise stay whole until W. A bucket without linear layers, as of convolutions, is
filled and reduced in B.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.collectives import Group, reduce_scatter
from parallel_core.engine.injected import late
from parallel_core.engine.reduction import gather
from parallel_core.engine.zero3 import Unsharder
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.plan.grad_buckets import Bucket
from parallel_core.schedule.ir import Kind

_LINEAR, _AUTOGRAD = "linear", "autograd"


class _GradBucket:
    """A gradient bucket; `whole` is its memory while it is allocated. `opens`: it is the first that a stage's backward
    fills."""

    def __init__(
        self, number: int, place: Bucket, held: list[tuple[nn.Parameter, int]], mine: Tensor, needs: Counter[str]
    ) -> None:
        self.number, self.size, self.held, self.mine, self.needs = number, place.stop - place.start, held, mine, needs
        self.sent, self.opens = 0, False
        self.came: Counter[str] = Counter()
        self.whole: Tensor | None = None

    def full(self) -> bool:
        """Whether a micro-batch's gradients are complete. After two B's those from autograd are in twice, those from W
        not yet."""
        return self.came >= self.needs


class _InFlight(NamedTuple):
    start: Any
    work: Any
    whole: Tensor
    out: Tensor
    mine: Tensor


class Zero2Reducer:
    """The `reduction.Reducer` of ZeRO-2; linear layers add their weight gradients to what `sums` returns."""

    def __init__(
        self,
        chunks: Chunks,
        group: Group,
        scope: Scope,
        delay: float = 0.0,
        unsharder: Unsharder | None = None,
    ) -> None:
        """`unsharder` (ZeRO-3) frees a bucket's parameters when all of its gradients are complete."""
        self._flat, self._group, self._scope, self._delay = chunks.flat, group, scope, delay
        self._weights, self._moved = chunks.weights, 0
        self._unsharder = unsharder
        self._weights.listener, self._weights.sums = partial(self._arrived, _LINEAR), self.sums
        self._in_flight: _InFlight | None = None
        self._buckets: list[_GradBucket] = []
        self._home: dict[nn.Parameter, tuple[_GradBucket, int]] = {}
        flat, linear, of_all = chunks.flat, chunks.weight_grad_arrivals(), chunks.arrivals()
        slots = {slot.name: slot for slot in flat}
        stage: int | None = None
        for number, (place, mine) in enumerate(zip(flat.buckets, flat.mine, strict=True)):
            held = [(slots[name].parameter, slots[name].start - place.start) for name in place.names]
            in_w, both = (sum(count[parameter] for parameter, _ in held) for count in (linear, of_all))
            needs = Counter({_LINEAR: in_w, _AUTOGRAD: both - in_w})
            bucket = _GradBucket(number, place, held, mine, needs)
            bucket.opens, stage = place.stage != stage, place.stage
            self._buckets.append(bucket)
            for parameter, at in held:
                self._home[parameter] = bucket, at
                parameter.register_post_accumulate_grad_hook(self._on_autograd_grad)

    def begin_step(self) -> None:
        for bucket in self._buckets:
            bucket.came, bucket.sent = Counter(), 0

    def sums(self, parameter: nn.Parameter) -> Tensor:
        """The part of its bucket that the gradient of `parameter` is to be added to; allocates the bucket if needed."""
        bucket, at = self._home[parameter]
        if bucket.whole is None:
            if bucket.opens:
                self._finish_in_flight()
            with self._scope.making("grads"):
                bucket.whole = self._flat.grads.new_zeros(bucket.size)
        return bucket.whole[at : at + parameter.numel()].view_as(parameter)

    def _arrived(self, how: str, parameter: nn.Parameter) -> None:
        """Counts an addition to a gradient; launches the bucket at the last one of a micro-batch."""
        bucket, _ = self._home[parameter]
        bucket.came[how] += 1
        if bucket.full():
            for waiting, _ in bucket.held:
                self._move_to_bucket(waiting)
            self._launch(bucket)
            if self._unsharder is not None:
                self._unsharder.done(bucket.number)

    def finish(self) -> int:
        """Waits until the owned gradients are complete; returns the bytes reduced."""
        self._finish_in_flight(inside=False)
        moved, self._moved = self._moved, 0
        return moved

    def gather(self) -> int:
        """All-gathers the updated parameters; returns the bytes of all of them."""
        return gather(self._flat, self._group, self._delay, self._scope.moved)

    @torch.no_grad()
    def _on_autograd_grad(self, parameter: nn.Parameter) -> None:
        """Hook of autograd, which has left a gradient in `parameter.grad`."""
        bucket, _ = self._home[parameter]
        if not self._weights.putting_off or not bucket.needs[_LINEAR]:
            self._move_to_bucket(parameter)
        elif parameter.grad is not None:  # several B's may add to it before W, so it needs the dtype of sums
            parameter.grad = parameter.grad.to(self._flat.grads.dtype)
            self._scope.kept(parameter.grad, "grads")
        self._arrived(_AUTOGRAD, parameter)

    @torch.no_grad()
    def _move_to_bucket(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self.sums(parameter).add_(parameter.grad)
            parameter.grad = None

    @torch.no_grad()
    def _launch(self, bucket: _GradBucket) -> None:
        self._finish_in_flight()
        assert bucket.whole is not None
        start, out = self._scope.mark(), bucket.mine
        if bucket.sent:
            with self._scope.making("grads"):
                out = torch.empty_like(bucket.mine)
        work = reduce_scatter(out, bucket.whole, self._group)
        self._in_flight = _InFlight(start, late(work, self._delay), bucket.whole, out, bucket.mine)
        self._moved += bucket.whole.nbytes
        bucket.whole, bucket.sent = None, bucket.sent + 1
        bucket.came = bucket.came - bucket.needs

    @torch.no_grad()
    def _finish_in_flight(self, inside: bool = True) -> None:
        """Waits for the bucket in flight; `inside` a backward, whose time that is not: then the wait is recorded, and
        before it the flight."""
        if self._in_flight is None:
            return
        begun, work, whole, out, mine = self._in_flight
        self._in_flight = None
        start = self._scope.mark() if inside else begun
        work.wait()
        if inside:
            self._scope.span(Kind.BUCKET_FLIGHT, LANE_COLLECTIVE, begun, end=start)
        self._scope.span(Kind.BUCKET_WAIT if inside else Kind.BUCKET, LANE_COLLECTIVE, start, whole.nbytes)
        if out is not mine:
            mine.add_(out)
