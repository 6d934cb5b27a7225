"""The tensor-parallel group of a rank, and the two functions every split layer is made of."""

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
    """A collective under way; `tensor` holds its result once `end` is through. No `work` in a group of one."""

    tensor: Tensor
    work: Any
    moved: int
    """Bytes of the whole tensor, of which a rank may keep some rows."""


class TensorGroup:
    """The ranks that share one stage of one replica. `group` is None for a group of one.

    Every collective is recorded as a child span of the operation that `scope` is at, and ends `delay` seconds late.
    """

    def __init__(self, rank: int, size: int, group: Group, scope: Scope, delay: float = 0.0) -> None:
        self.rank, self.size, self._group, self._scope, self._delay = rank, size, group, scope, delay

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Reduce `tensor` (contiguous) over the group, in place."""
        if self.size == 1:
            return tensor
        start = self._scope.mark()
        with self._scope.named(Kind.TP_COLLECTIVE.name):
            self._begin(tensor, op).wait()
        self._record(start, tensor.nbytes)
        return tensor

    def begin_all_reduce(self, tensor: Tensor) -> Begun:
        """The same, asynchronous: returns what `end` waits for."""
        return Begun(tensor, self._begin(tensor) if self.size > 1 else None, tensor.nbytes)

    def begin_gather(self, mine: Tensor) -> Begun:
        """Everyone's (1, rows / size, width), in the order of ranks, as (1, rows, width)."""
        mine = mine.contiguous()
        out = mine.new_empty(1, self.size * mine.shape[1], mine.shape[2])
        work = all_gather(out.view(-1), mine.view(-1), self._group)
        return Begun(out, late(work, self._delay), out.nbytes)

    def begin_scatter(self, tensor: Tensor) -> Begun:
        """This rank's rows of the sum over the group: (..., width) -> (1, rows / size, width)."""
        tensor = tensor.contiguous()
        out = tensor.new_empty(1, tensor[..., 0].numel() // self.size, tensor.shape[-1])
        work = reduce_scatter(out.view(-1), tensor.view(-1), self._group)
        return Begun(out, late(work, self._delay), tensor.nbytes)

    def end(self, begun: Begun) -> Tensor:
        """Wait for it. Only the wait is recorded: what computation hid costs nothing."""
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
