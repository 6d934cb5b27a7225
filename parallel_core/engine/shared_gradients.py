"""Gradients that several ranks other than replicas each hold a part of: summed before the norm is computed.

These are the tied embedding on first and last stage, and under sequence parallelism the parameters that see only part
of the sequence on each tensor rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parallel_core.engine.collectives import all_reduce, sum_in_rank_order
from parallel_core.engine.distributed import Groups
from parallel_core.engine.flat import FlatParameters
from parallel_core.outline.splits import summed_by_rows
from parallel_core.plan.grad_buckets import TIED


class SharedGradients:
    """`sum` is called after the reduction over replicas, so that under ZeRO only what a replica owns is summed.

    Where replicas each sum all of it, they must get the same bits, although the tensor group of one may be on one host
    and that of another on several.
    """

    def __init__(self, flat: FlatParameters, groups: Groups, sequence: bool) -> None:
        """`sequence`: sequence parallelism, where each tensor rank has gradients of its own rows only."""
        self._tied, self._tensor = groups.tied, groups.tensor
        grads = flat.owned_grads()
        self._embedding = grads[TIED] if groups.tied is not None else None
        mine = [grad for name, grad in grads.items() if summed_by_rows(name) and len(grad)] if sequence else []
        self._by_rows: list[Tensor] = mine
        self._alike = groups.data is not None and not flat.sharded

    @torch.no_grad()
    def sum(self) -> None:
        """Sums the shared gradients in place (a collective)."""
        if self._embedding is not None and len(self._embedding):  # first and last stage own the same elements
            all_reduce(self._embedding, self._tied).wait()
        if self._by_rows:
            together = torch.cat(self._by_rows)  # one message in place of one per parameter
            if self._alike and self._tensor is not None:
                sum_in_rank_order(together, self._tensor)
            else:
                all_reduce(together, self._tensor).wait()
            for mine, total in zip(self._by_rows, together.split([len(g) for g in self._by_rows]), strict=True):
                mine.copy_(total)
