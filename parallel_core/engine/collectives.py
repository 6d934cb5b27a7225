"""Collectives and messages, whatever they go through: NCCL or gloo (torch.distributed), or shared memory.

Works of a group end in the order in which they were begun.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine import staged
from parallel_core.engine.host_group import HostGroup
from parallel_core.engine.host_links import HostLinks
from parallel_core.engine.host_table import HostTable
from parallel_core.engine.staged import Work

Group = dist.ProcessGroup | HostGroup | None
"""None is a group of one: nothing to communicate."""

TableGroup = Group | HostTable
"""What can gather."""

LinkGroup = dist.ProcessGroup | HostLinks | None
"""What messages of one kind go through."""


def size_of(group: dist.ProcessGroup | HostGroup) -> int:
    return group.size if isinstance(group, HostGroup) else dist.get_world_size(group)


def rank_in(group: dist.ProcessGroup | HostGroup) -> int:
    return group.rank if isinstance(group, HostGroup) else dist.get_rank(group)


def all_reduce(tensor: Tensor, group: Group, op: Any = dist.ReduceOp.SUM) -> Work:
    """Begins the reduction of `tensor` (contiguous) over the group, in place."""
    if not staged.is_staged(tensor, group):
        return _all_reduce(tensor, group, op)
    host = staged.out_of(tensor)
    return staged.Staged(_all_reduce(host, group, op), host, tensor)


def all_gather(out: Tensor, mine: Tensor, group: TableGroup) -> Work:
    """Begins to bring everybody's `mine` into `out`, in the order of ranks; both flat."""
    if not staged.is_staged(out, group):
        return _all_gather(out, mine, group)
    host = staged.room_for(out)
    return staged.Staged(_all_gather(host, staged.out_of(mine), group), host, out)


def reduce_scatter(out: Tensor, tensor: Tensor, group: Group) -> Work:
    """Begins the sum of `tensor`, of which `out` gets this rank's part; both flat."""
    if not staged.is_staged(out, group):
        return _reduce_scatter(out, tensor, group)
    host = staged.room_for(out)
    return staged.Staged(_reduce_scatter(host, staged.out_of(tensor), group), host, out)


def isend(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    """Begins to send `tensor` (contiguous) to a global rank."""
    if not staged.is_staged(tensor, group):
        return _isend(tensor, rank, group)
    host = staged.out_of(tensor)
    return staged.Staged(_isend(host, rank, group), host, None)


def irecv(tensor: Tensor, rank: int, group: LinkGroup) -> Work:
    """Posts a receive from a global rank into `tensor`."""
    if not staged.is_staged(tensor, group):
        return _irecv(tensor, rank, group)
    host = staged.room_for(tensor)
    return staged.Staged(_irecv(host, rank, group), host, tensor)


def _all_reduce(tensor: Tensor, group: Group, op: Any) -> Work:
    if isinstance(group, HostGroup):
        return group.all_reduce(tensor, op)
    work: Work = dist.all_reduce(tensor, op, group=group, async_op=True)
    return work


def _all_gather(out: Tensor, mine: Tensor, group: TableGroup) -> Work:
    if isinstance(group, HostGroup | HostTable):
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
