"""The tensor-parallel group of a rank, with the collectives that split layers use."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.collectives import Group, all_gather, all_reduce, reduce_scatter
from parallel_core.engine.injected import late
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


class Begun(NamedTuple):
    """A collective in flight; `tensor` holds its result after `TensorGroup.end`. `work` is None in a group of one."""

    tensor: Tensor
    work: Any
    moved: int
    """Bytes of the whole tensor, of which a rank may keep only some rows."""
    start: Any
    """The mark at which this rank was ready for it."""


class TensorGroup:
    """The ranks that share one stage of one replica. `group` is None for a group of one.

    Every collective is recorded as a child span of the current operation in `scope`, and is delayed by `delay` seconds.
    """

    def __init__(self, rank: int, size: int, group: Group, scope: Scope, delay: float = 0.0) -> None:
        self.rank, self.size, self._group, self._scope, self._delay = rank, size, group, scope, delay

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Reduces `tensor` (contiguous) over the group, in place."""
        if self.size == 1:
            return tensor
        start = self._scope.mark()
        with self._scope.named(Kind.TP_COLLECTIVE.name):
            self._begin(tensor, op).wait()
        self._record(start, tensor.nbytes)
        return tensor

    def begin_all_reduce(self, tensor: Tensor) -> Begun:
        """Starts an asynchronous all-reduce of `tensor`, in place; `end` waits for it."""
        start = self._scope.mark()
        return Begun(tensor, self._begin(tensor) if self.size > 1 else None, tensor.nbytes, start)

    def begin_gather(self, mine: Tensor) -> Begun:
        """Starts gathering every rank's [1, rows / size, width], in rank order, into [1, rows, width]."""
        mine = mine.contiguous()
        out = mine.new_empty(1, self.size * mine.shape[1], mine.shape[2])
        start = self._scope.mark()
        work = all_gather(out.view(-1), mine.view(-1), self._group)
        return Begun(out, late(work, self._delay), out.nbytes, start)

    def begin_scatter(self, tensor: Tensor) -> Begun:
        """Starts a reduce-scatter: [..., width] -> this rank's rows of the sum, [1, rows / size, width]."""
        tensor = tensor.contiguous()
        out = tensor.new_empty(1, tensor[..., 0].numel() // self.size, tensor.shape[-1])
        start = self._scope.mark()
        work = reduce_scatter(out.view(-1), tensor.view(-1), self._group)
        return Begun(out, late(work, self._delay), tensor.nbytes, start)

    def end(self, begun: Begun) -> Tensor:
        """Waits for a collective that was started before other work, and returns its result. The wait is recorded, and
        before it the flight: in that the rank waits for nobody, and from its begin no other rank waits for this one."""
        start = self._scope.mark()
        if begun.work is not None:
            self._scope.span(Kind.TP_FLIGHT, LANE_COLLECTIVE, begun.start, end=start)
        return self._waited(begun, start)

    def gather(self, mine: Tensor) -> Tensor:
        """As `begin_gather` and `end` with nothing in between."""
        begun = self.begin_gather(mine)
        return self._waited(begun, begun.start)

    def scatter(self, tensor: Tensor) -> Tensor:
        """As `begin_scatter` and `end` with nothing in between."""
        begun = self.begin_scatter(tensor)
        return self._waited(begun, begun.start)

    def _waited(self, begun: Begun, start: Any) -> Tensor:
        """The result of a collective, after the wait for it, which is recorded from `start` on."""
        if begun.work is None:
            return begun.tensor
        with self._scope.named(Kind.TP_COLLECTIVE.name):
            begun.work.wait()
        self._record(start, begun.moved)
        return begun.tensor

    def _begin(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        return late(all_reduce(tensor, self._group, op), self._delay)

    def _record(self, start: Any, moved: int) -> None:
        self._scope.span(Kind.TP_COLLECTIVE, LANE_COLLECTIVE, start, moved)
