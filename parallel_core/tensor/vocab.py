"""Embedding and cross-entropy with the vocabulary split over a tensor-parallel group (Shoeybi et al. 2019, section 3).

Rank i holds the rows [i, i + 1) x vocab / size. The full logits are never materialized: the loss needs the maximum,
the sum of exponentials and the target's logit of each row, which are three numbers per row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.models.numerics import wide
from parallel_core.models.row_sums import embedding
from parallel_core.tensor.group import TensorGroup


class _Sum(torch.autograd.Function):
    """Megatron's g: sum over the group forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.mark_dirty(x)
        return group.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def local_ids(ids: Tensor, rows: int, rank: int) -> tuple[Tensor, Tensor]:
    """Returns ids as row numbers of this rank's shard (0 for other ranks' rows), and a mask that is True for those."""
    local = ids - rank * rows
    foreign = (local < 0) | (local >= rows)
    return local.masked_fill(foreign, 0), foreign


class VocabEmbedding(nn.Module):
    """Holds `vocab / size` rows; ids [batch, seq] -> [batch, seq, hidden], equal on every rank."""

    def __init__(self, full: nn.Embedding, group: TensorGroup) -> None:
        super().__init__()
        rows = full.num_embeddings // group.size
        self.group = group
        self.weight = nn.Parameter(full.weight.new_empty(rows, full.embedding_dim))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = _Sum.apply(self.mine(ids), self.group)
        return out

    def mine(self, ids: Tensor) -> Tensor:
        """Returns the vectors of rows that this rank holds, zeros for other ids: [batch, seq, hidden]."""
        local, foreign = local_ids(ids, len(self.weight), self.group.rank)
        return embedding(local, self.weight).masked_fill(foreign.unsqueeze(-1), 0.0)


class _CrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of split logits, which it overwrites; see `VocabCrossEntropy`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: TensorGroup) -> Tensor:
        top = group.all_reduce(logits.amax(1), dist.ReduceOp.MAX)
        shifted = logits.sub_(top[:, None])
        local, foreign = local_ids(targets, logits.shape[1], group.rank)
        at_target = shifted.gather(1, local[:, None]).squeeze(1).masked_fill(foreign, 0.0)
        weights = shifted.exp_()
        sums = group.all_reduce(torch.stack([weights.sum(1), at_target]))
        left_out = targets < 0
        shares = weights.div_(sums[0].masked_fill(left_out, torch.inf)[:, None])  # 0, so that no gradient follows
        ctx.save_for_backward(shares, local, foreign)
        return (sums[0].log() - sums[1]).masked_fill_(left_out, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, foreign = ctx.saved_tensors
        out = softmax.mul_(grad)
        out.scatter_add_(1, local[:, None], torch.where(foreign, 0.0, -grad)[:, None].to(out.dtype))
        return out, None, None


class VocabCrossEntropy(nn.Module):
    """Sum of negative log likelihoods: logits [n, vocab / size], targets [n] (-1: not counted) -> scalar, equal on
    every rank.

    Overwrites the logits, unless they have 16 bits.
    """

    def __init__(self, group: TensorGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = _CrossEntropy.apply(wide(logits), targets, self.group)
        return out
