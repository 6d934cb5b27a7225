"""Communication between replicas while layers run: the statistics of batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parallel_core.engine.collectives import Group, all_gather, size_of
from parallel_core.models.batchnorm import BatchNorm
from parallel_core.observe.recorder import LANE_COLLECTIVE
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


class ReplicaGroup:
    """The replicas of one stage; every exchange is recorded as a child span of the current operation in `scope`."""

    def __init__(self, group: Group, scope: Scope) -> None:
        assert group is not None
        self._group, self._scope = group, scope
        self._size = size_of(group)

    def gather(self, mine: Tensor) -> Tensor:
        """All-gathers the ranks' [n] values as [replicas, n], in the same order on each."""
        start = self._scope.mark()
        out = mine.new_empty(self._size * len(mine))
        all_gather(out, mine.contiguous(), self._group).wait()
        self._scope.span(Kind.STATISTICS, LANE_COLLECTIVE, start, out.nbytes)
        return out.view(self._size, -1)


def synchronise(unit: nn.Module, group: Group, scope: Scope) -> None:
    """Makes the batch norms of `unit` use statistics over the samples of all replicas."""
    if group is None:
        return
    for module in unit.modules():
        if isinstance(module, BatchNorm):
            module.gather = ReplicaGroup(group, scope).gather


def materialise(unit: nn.Module, device: torch.device) -> None:
    """Allocates the buffers of `unit`, which was built on 'meta', with their initial values: variances 1, means 0."""
    for module in unit.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            fill = 1.0 if name.endswith("var") else 0.0
            setattr(module, name, torch.full(buffer.shape, fill, dtype=buffer.dtype, device=device))
