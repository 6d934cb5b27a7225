"""ZeRO-2: a replica keeps the gradients of its own parts alone (Rajbhandari et al. 2020, section 5.2).

A bucket is made when backward first adds to it, reduce-scattered when the last gradient of a micro-batch is in, and let
go. What comes out is this replica's part of the sum, and is added to what earlier micro-batches left there: replicas
first, then micro-batches, so gradients travel once a micro-batch (DeepSpeed's ZeRO-2 does the same). At most two
buckets are whole at a time: one that fills and one under way. A stage's backward first waits for what is under way,
because memory is at its peak there.

What is added by autograd while weights are put off (`tensor.weights`), of norms mostly, waits in `parameter.grad`: a
bucket opened in B would be whole until W.
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


class _Filling:
    """A bucket: `whole` while it is there. `opens`: a stage's backward fills it first."""

    def __init__(
        self, number: int, place: Bucket, held: list[tuple[nn.Parameter, int]], mine: Tensor, needs: Counter[str]
    ) -> None:
        self.number, self.size, self.held, self.mine, self.needs = number, place.stop - place.start, held, mine, needs
        self.sent, self.opens = 0, False
        self.came: Counter[str] = Counter()
        self.whole: Tensor | None = None

    def full(self) -> bool:
        """Whether all of a micro-batch came. Behind two B's what autograd adds came twice, and what W adds did not."""
        return self.came >= self.needs


class _UnderWay(NamedTuple):
    start: Any
    work: Any
    whole: Tensor
    out: Tensor
    mine: Tensor


class Zero2Reducer:
    """`reduction.GradientReducer` of ZeRO-2; linear layers add to what `sums` gives out."""

    def __init__(
        self,
        chunks: Chunks,
        group: Group,
        scope: Scope,
        delay: float = 0.0,
        unsharder: Unsharder | None = None,
    ) -> None:
        """`unsharder` (ZeRO-3) lets go of a bucket's parameters when all of its gradients are in."""
        self._flat, self._group, self._scope, self._delay = chunks.flat, group, scope, delay
        self._weights, self._moved = chunks.weights, 0
        self._unsharder = unsharder
        self._weights.listener, self._weights.sums = partial(self._arrived, _LINEAR), self.sums
        self._under_way: _UnderWay | None = None
        self._buckets: list[_Filling] = []
        self._home: dict[nn.Parameter, tuple[_Filling, int]] = {}
        flat, linear, of_all = chunks.flat, chunks.handed_in(), chunks.arrivals()
        slots = {slot.name: slot for slot in flat}
        stage: int | None = None
        for number, (place, mine) in enumerate(zip(flat.buckets, flat.mine, strict=True)):
            held = [(slots[name].parameter, slots[name].start - place.start) for name in place.names]
            handed_in, both = (sum(count[parameter] for parameter, _ in held) for count in (linear, of_all))
            needs = Counter({_LINEAR: handed_in, _AUTOGRAD: both - handed_in})
            bucket = _Filling(number, place, held, mine, needs)
            bucket.opens, stage = place.stage != stage, place.stage
            self._buckets.append(bucket)
            for parameter, at in held:
                self._home[parameter] = bucket, at
                parameter.register_post_accumulate_grad_hook(self._came)

    def begin_step(self) -> None:
        for bucket in self._buckets:
            bucket.came, bucket.sent = Counter(), 0

    def sums(self, parameter: nn.Parameter) -> Tensor:
        """Where the gradient of `parameter` is to be added."""
        bucket, at = self._home[parameter]
        if bucket.whole is None:
            if bucket.opens:
                self._settle()
            with self._scope.making("grads"):
                bucket.whole = self._flat.grads.new_zeros(bucket.size)
        return bucket.whole[at : at + parameter.numel()].view_as(parameter)

    def _arrived(self, how: str, parameter: nn.Parameter) -> None:
        """A gradient was added to; of the last of a micro-batch, launches the bucket."""
        bucket, _ = self._home[parameter]
        bucket.came[how] += 1
        if bucket.full():
            for waiting, _ in bucket.held:
                self._take(waiting)
            self._launch(bucket)
            if self._unsharder is not None:
                self._unsharder.done(bucket.number)

    def finish(self) -> int:
        """Wait until what this replica owns is the sum of all; returns the bytes that were reduced."""
        self._settle()
        moved, self._moved = self._moved, 0
        return moved

    def gather(self) -> int:
        """Every replica's part of the parameters to all of them; returns the bytes of the whole."""
        return gather(self._flat, self._group, self._delay)

    @torch.no_grad()
    def _came(self, parameter: nn.Parameter) -> None:
        """Autograd has left a gradient in `parameter.grad`."""
        if not self._weights.putting_off:
            self._take(parameter)
        elif parameter.grad is not None:  # in B after B it grows, so it must be as wide as a sum
            parameter.grad = parameter.grad.to(self._flat.grads.dtype)
            self._scope.kept(parameter.grad, "grads")
        self._arrived(_AUTOGRAD, parameter)

    @torch.no_grad()
    def _take(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self.sums(parameter).add_(parameter.grad)
            parameter.grad = None

    @torch.no_grad()
    def _launch(self, bucket: _Filling) -> None:
        self._settle()
        assert bucket.whole is not None
        start, out = self._scope.mark(), bucket.mine
        if bucket.sent:
            with self._scope.making("grads"):
                out = torch.empty_like(bucket.mine)
        work = reduce_scatter(out, bucket.whole, self._group)
        self._under_way = _UnderWay(start, late(work, self._delay), bucket.whole, out, bucket.mine)
        self._moved += bucket.whole.nbytes
        bucket.whole, bucket.sent = None, bucket.sent + 1
        bucket.came = bucket.came - bucket.needs

    @torch.no_grad()
    def _settle(self) -> None:
        if self._under_way is None:
            return
        start, work, whole, out, mine = self._under_way
        self._under_way = None
        work.wait()
        if out is not mine:
            mine.add_(out)
        self._scope.span(Kind.BUCKET, LANE_COLLECTIVE, start, whole.nbytes)
