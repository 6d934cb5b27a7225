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
        return Begun(tensor, self._begin(tensor) if self.size > 1 else None, tensor.nbytes)

    def begin_gather(self, mine: Tensor) -> Begun:
        """Starts gathering every rank's [1, rows / size, width], in rank order, into [1, rows, width]."""
        mine = mine.contiguous()
        out = mine.new_empty(1, self.size * mine.shape[1], mine.shape[2])
        work = all_gather(out.view(-1), mine.view(-1), self._group)
        return Begun(out, late(work, self._delay), out.nbytes)

    def begin_scatter(self, tensor: Tensor) -> Begun:
        """Starts a reduce-scatter: [..., width] -> this rank's rows of the sum, [1, rows / size, width]."""
        tensor = tensor.contiguous()
        out = tensor.new_empty(1, tensor[..., 0].numel() // self.size, tensor.shape[-1])
        work = reduce_scatter(out.view(-1), tensor.view(-1), self._group)
        return Begun(out, late(work, self._delay), tensor.nbytes)

    def end(self, begun: Begun) -> Tensor:
        """Waits for a collective and returns its result. Only the wait is recorded, not what computation hides."""
        if begun.work is not None:
            start = self._scope.mark()
            with self._scope.named(Kind.TP_COLLECTIVE.name):
                begun.work.wait()
            self._record(start, begun.moved)
        return begun.tensor

    def _begin(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        return late(all_reduce(tensor, self._group, op), self._delay)

    def _record(self, start: Any, moved: int) -> None:
        self._scope.span(Kind.TP_COLLECTIVE, LANE_COLLECTIVE, start, moved)
