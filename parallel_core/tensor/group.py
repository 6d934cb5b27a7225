"""The tensor-parallel group of a rank, and the two functions every split layer is made of."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.injected import late
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


class TensorGroup:
    """The ranks that share one stage of one replica. `group` is None for a group of one.

    Every collective is recorded as a child span of the operation that `scope` is at, and ends `delay` seconds late.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None, scope: Scope, delay: float = 0.0) -> None:
        self.rank, self.size, self._group, self._scope, self._delay = rank, size, group, scope, delay

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Reduce `tensor` (contiguous) over the group, in place."""
        if self.size == 1:
            return tensor
        start = self._scope.mark()
        self._begin(tensor, op).wait()
        self._record(start, tensor)
        return tensor

    def begin_all_reduce(self, tensor: Tensor) -> Any:
        """The same, asynchronous: returns what `end_all_reduce` waits for."""
        return (tensor, self._begin(tensor)) if self.size > 1 else None

    def end_all_reduce(self, begun: Any) -> None:
        """Wait for it. Only the wait is recorded: what computation hid costs nothing."""
        if begun is None:
            return
        tensor, work = begun
        start = self._scope.mark()
        work.wait()
        self._record(start, tensor)

    def _begin(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        return late(dist.all_reduce(tensor, op, group=self._group, async_op=True), self._delay)

    def _record(self, start: Any, tensor: Tensor) -> None:
        self._scope.span(Kind.TP_COLLECTIVE, LANE_COLLECTIVE, start, tensor.numel() * tensor.element_size())
