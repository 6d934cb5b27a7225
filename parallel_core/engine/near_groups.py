"""Groups of ranks: through shared memory where all their ranks are CPU ranks of one host, else torch.distributed's.

Groups are opened class by class (all tensor groups, all data groups, ...), as members alone cannot make a torch group.
Torch would name it by the number of groups that a rank is in already (`use_local_synchronization`). Ranks of a run that
is spread unevenly over hosts are in different numbers, as groups in memory do not count: they would wait for each other
under different names. So all ranks learn which groups of a class are not in memory, and all ask torch for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from parallel_core.engine.async_all_gather import open_async_all_gather
from parallel_core.engine.collectives import Group, LinkGroup, TableGroup
from parallel_core.engine.host_group import open_group
from parallel_core.engine.host_links import open_links
from parallel_core.schedule.ways import LinkKind

TIMEOUT = timedelta(minutes=20)
"""Time limit of a collective, and of the wait for ranks on another host, which may first have to finish a profile (10
minutes) and fetch a text. The no-progress watchdog finds a hang long before."""
Ranks = Sequence[int]
"""Global ranks, ascending."""
Near = TypeVar("Near")
"""What ranks of one host exchange data through, in memory."""


def own_group(groups: Sequence[Ranks], rank: int, store: dist.Store) -> Group:
    """Returns the one of `groups` that `rank` is in; None if it is in none, or in one on its own.

    No two of the groups have a rank in common. Every rank of the world must call this, with the same groups.
    """
    near, apart = _near(groups, rank, lambda ranks: open_group(ranks, rank, store))
    made = own_torch_group(apart, rank)
    return made if near is None else near


def own_links(
    groups: Sequence[Ranks], kinds: Sequence[LinkKind], rank: int, store: dist.Store, flushes: bool = True
) -> Mapping[LinkKind, LinkGroup]:
    """Returns the links of each of `kinds` between the ranks of the one of `groups` that `rank` is in, each of which
    has several. As in `own_group`, every rank must call it.

    Each carries only messages of its kind. In a pipeline that does not flush, the world is in use during the messages,
    so no link uses the world.
    """
    if not kinds:
        return {}
    near, apart = _near(groups, rank, lambda ranks: open_links(ranks, kinds, rank, store))
    made = {kind: own_torch_group(apart, rank, fresh=i > 0 or not flushes) for i, kind in enumerate(kinds)}
    return made if near is None else near


def world_table(rank: int, store: dist.Store) -> TableGroup:
    """Returns what gathers among all ranks, all of which must call it, without synchronising them: through memory, or
    the world."""
    ranks = range(dist.get_world_size())
    near = open_async_all_gather(ranks, rank, store) if dist.get_backend() == "gloo" else None
    return dist.group.WORLD if near is None else near


def own_torch_group(groups: Sequence[Ranks], rank: int, fresh: bool = False) -> dist.ProcessGroup | None:
    """Returns the one of `groups` that `rank` is in, as a torch process group; else as `own_group`. One of all ranks
    is the world itself unless `fresh`."""
    own = None
    for ranks in groups:
        if len(ranks) > 1:
            whole = len(ranks) == dist.get_world_size() and not fresh
            made = dist.group.WORLD if whole else common_torch_group(ranks)
            own = made if rank in ranks else own
    return own


def common_torch_group(ranks: Ranks) -> dist.ProcessGroup:
    """A torch process group that every rank of the world must call for, members or not: then its name is the same on
    all of them, however many groups each is in."""
    made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT)
    return made


def _near(
    groups: Sequence[Ranks], rank: int, open_near: Callable[[Ranks], Near | None]
) -> tuple[Near | None, Sequence[Ranks]]:
    """Returns what `open_near` opens for the ranks of the own group, and the groups for whose ranks it opens nothing:
    the same on every rank of the world."""
    several = [ranks for ranks in groups if len(ranks) > 1]
    if dist.get_backend() != "gloo" or not several:
        return None, several
    own = next((at for at, ranks in enumerate(several) if rank in ranks), None)
    near = None if own is None else open_near(several[own])
    apart = torch.zeros(len(several), dtype=torch.int32)
    if own is not None:
        apart[own] = near is None
    dist.all_reduce(apart)
    return near, [ranks for ranks, count in zip(several, apart.tolist(), strict=True) if count]
