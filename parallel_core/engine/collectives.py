"""Collectives and point-to-point messages over any transport: NCCL or gloo (torch.distributed), or shared host memory.

The operations of a group complete in the order in which they were started.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine import host_staging
from parallel_core.engine.async_all_gather import AsyncAllGather
from parallel_core.engine.host_group import HostGroup
from parallel_core.engine.host_links import HostLinks
from parallel_core.engine.host_staging import Work

Group = dist.ProcessGroup | HostGroup | None
"""A process group; None is a group of one rank, with nothing to communicate."""

TableGroup = Group | AsyncAllGather
"""A group that supports all-gather."""

LinkGroup = dist.ProcessGroup | HostLinks | None
"""The transport of the point-to-point messages of one kind."""


def size_of(group: dist.ProcessGroup | HostGroup) -> int:
    """Returns the number of ranks of a group."""
    return group.size if isinstance(group, HostGroup) else dist.get_world_size(group)


def rank_in(group: dist.ProcessGroup | HostGroup) -> int:
    """Returns this rank's number within a group."""
    return group.rank if isinstance(group, HostGroup) else dist.get_rank(group)


def all_reduce(tensor: Tensor, group: Group, op: Any = dist.ReduceOp.SUM) -> Work:
    """Starts an all-reduce of `tensor` (contiguous) over the group, in place."""
    if not host_staging.is_staged(tensor, group):
        return _all_reduce(tensor, group, op)
    host = host_staging.out_of(tensor)
    return host_staging.Staged(_all_reduce(host, group, op), host, tensor)


def sum_in_rank_order(tensor: Tensor, group: dist.ProcessGroup | HostGroup) -> None:
    """Sums `tensor` (contiguous, at least fp32) over the group, in place, and waits for it: (rank 0 + rank 1) + rank 2
    ..., so that groups of equal size get the same bits of equal terms over any transport.

    `HostGroup` adds so. Of more than two terms, the order in an all-reduce of gloo and NCCL follows their algorithm.
    """
    if isinstance(group, HostGroup) or size_of(group) == 2:
        all_reduce(tensor, group).wait()
        return
    flat, size = tensor.view(-1), size_of(group)
    parts = flat.new_empty(size * len(flat))
    all_gather(parts, flat, group).wait()
    first, *others = parts.view(size, -1)
    flat.copy_(first)
    for other in others:
        flat.add_(other)


def all_gather(out: Tensor, mine: Tensor, group: TableGroup) -> Work:
    """Starts an all-gather of every rank's `mine` into `out`, in rank order; both are flat."""
    if not host_staging.is_staged(out, group):
        return _all_gather(out, mine, group)
    host = host_staging.room_for(out)
    return host_staging.Staged(_all_gather(host, host_staging.out_of(mine), group), host, out)


def reduce_scatter(out: Tensor, tensor: Tensor, group: Group) -> Work:
    """Starts a reduce-scatter (sum) of `tensor`; `out` receives this rank's part. Both are flat."""
    if not host_staging.is_staged(out, group):
        return _reduce_scatter(out, tensor, group)
    host = host_staging.room_for(out)
    return host_staging.Staged(_reduce_scatter(host, host_staging.out_of(tensor), group), host, out)


def isend(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    """Starts sending `tensor` (contiguous) to the global rank `rank`."""
    if not host_staging.is_staged(tensor, group):
        return _isend(tensor, rank, group)
    host = host_staging.out_of(tensor)
    return host_staging.Staged(_isend(host, rank, group), host, None)


def irecv(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    """Posts a receive into `tensor` from the global rank `rank`."""
    if not host_staging.is_staged(tensor, group):
        return _irecv(tensor, rank, group)
    host = host_staging.room_for(tensor)
    return host_staging.Staged(_irecv(host, rank, group), host, tensor)


def _all_reduce(tensor: Tensor, group: Group, op: Any) -> Work:
    if isinstance(group, HostGroup):
        return group.all_reduce(tensor, op)
    work: Work = dist.all_reduce(tensor, op, group=group, async_op=True)
    return work


def _all_gather(out: Tensor, mine: Tensor, group: TableGroup) -> Work:
    if isinstance(group, HostGroup | AsyncAllGather):
        return group.all_gather(out, mine)
    work: Work = dist.all_gather_single(out, mine, group=group, async_op=True)
    return work


def _reduce_scatter(out: Tensor, tensor: Tensor, group: Group) -> Work:
    if isinstance(group, HostGroup):
        return group.reduce_scatter(out, tensor)
    work: Work = dist.reduce_scatter_single(out, tensor, group=group, async_op=True)
    return work


def _isend(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    if isinstance(group, HostLinks):
        return group.isend(tensor, rank)
    work = dist.isend(tensor, rank, group=group)
    assert work is not None
    return work


def _irecv(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    if isinstance(group, HostLinks):
        return group.irecv(tensor, rank)
    work = dist.irecv(tensor, rank, group=group)
    assert work is not None
    return work
