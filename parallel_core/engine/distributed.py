"""Sets up process groups: the store, the world, and the smaller groups that a rank belongs to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import torch
import torch.distributed as dist

from parallel_core.engine.collectives import (
    Group,
    LinkGroup,
    TableGroup,
    all_gather,
    all_reduce,
    irecv,
    isend,
    reduce_scatter,
    size_of,
)
from parallel_core.engine.host_group import HostGroup, open_group
from parallel_core.engine.host_links import Kind, open_links
from parallel_core.engine.host_table import HostTable, open_table
from parallel_core.engine.stop import Stopped
from parallel_core.layout import Layout

TIMEOUT = timedelta(minutes=20)
"""Time limit of a collective, and of the wait for ranks on another host, which may first have to finish a profile (10
minutes) and fetch a text. The no-progress watchdog finds a hang long before."""

_POLL_S = 0.02
Near = TypeVar("Near", HostGroup, HostTable)
"""Groups through which ranks of one host exchange data in memory."""
MET = (1, 1 << 16, 1 << 24)
"""Elements (fp32) of the first messages of a group: up to 64 MiB, as large as those of a step."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a run find each other. `is_host`: this rank hosts the store, `listen_fd`: on a socket that
    already listens.

    With `port` = 0 and no socket the host takes a free port, which the store of `open_store` has.
    """

    host: str
    port: int
    world: int
    is_host: bool
    listen_fd: int | None = None
    sharing: int = 1
    """Number of ranks on one GPU; NCCL refuses more than one."""
    node: int | None = None
    """The first rank of this host if the ranks are on several hosts; None if all are on one."""

    def open_store(self) -> dist.TCPStore:
        return dist.TCPStore(
            self.host,
            self.port,
            self.world,
            is_master=self.is_host,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=self.listen_fd,
        )


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank."""

    store: dist.Store | None = None
    world: Group = None
    """All ranks."""
    totals: TableGroup = None
    """All ranks, for the totals of steps. In a pipeline that does not flush, ranks may be steps apart in them."""
    tensor: Group = None
    data: Group = None
    links: Mapping[tuple[bool, bool], LinkGroup] = field(default_factory=dict)
    """(whether to a higher pipeline rank, whether activations) -> group of the pipeline's ranks.

    In each group a pair of ranks sends in one direction and one kind of message. So messages arrive in order, and a
    receive that is posted early never blocks a send (NCCL executes the messages of a pair in order).
    """
    tied: Group = None
    """The ranks of the first and last stage of a pipeline if they share the embedding and are different ranks."""


def connect(rendezvous: Rendezvous, rank: int, layout: Layout, backend: str, tied: bool = False) -> Groups:
    """Joins the world and makes this rank's groups. A world of one rank needs neither store nor groups."""
    if layout.world == 1:
        return Groups()
    store = rendezvous.open_store()
    dist.init_process_group(backend, store=store, rank=rank, world_size=layout.world, timeout=TIMEOUT)
    groups = groups_of(rank, layout, store, tied)
    if backend == "nccl":
        meet(groups, rank, layout, torch.device("cuda", torch.cuda.current_device()))
    return groups


def meet(groups: Groups, rank: int, layout: Layout, device: torch.device) -> None:
    """Uses every group, and every pair of ranks that will exchange messages, once, in the same order on all ranks.

    NCCL opens a communicator at its first use, where the host waits for the other members. Within a step that could
    deadlock: a receive is posted long before its sender can reach the send, as it may still wait for this rank.
    """
    one, all_of = torch.zeros(1, device=device), torch.empty(layout.world, device=device)
    at_work = groups.tensor, groups.data, groups.tied
    for group in dict.fromkeys((groups.world, *at_work)):
        if group is not None:
            use(group, device, MET if group in at_work else MET[:1])
    all_gather(all_of, one, groups.totals).wait()
    for kind, link in sorted(groups.links.items()):
        for sender, receiver in pairs(rank, layout, kind[0]):
            work = isend(one, receiver, link) if sender == rank else irecv(one, sender, link)
            work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use(group: dist.ProcessGroup | HostGroup, device: torch.device, sizes: Sequence[int] = MET) -> None:
    """Runs every kind of collective once with each size. NCCL connects the ranks of a group at the first use of an
    algorithm (ring, tree: docs.nvidia.com, NCCL, NCCL_RUNTIME_CONNECT), which it chooses by kind and size."""
    ranks = size_of(group)
    for size in sizes:
        each = -(-size // ranks)
        whole = torch.zeros(each * ranks, device=device)
        part = whole[:each].clone()
        all_reduce(whole, group).wait()
        all_gather(whole, part, group).wait()
        reduce_scatter(part, whole, group).wait()


def pairs(rank: int, layout: Layout, up: bool) -> list[tuple[int, int]]:
    """(sender, receiver), ascending, of the messages that `rank` sends or receives towards higher pipeline ranks (`up`)
    or towards lower ones."""
    here, found = layout.pipeline_rank(rank), set()
    for other in layout.linked(layout.coords(rank).replica):
        if other != here:
            sent = {(rank, receiver) for receiver in layout.receivers(rank, other)} if (other > here) == up else set()
            found |= sent | ({(layout.sender(rank, other), rank)} if (other < here) == up else set())
    return sorted(found)


def groups_of(rank: int, layout: Layout, store: dist.Store, tied: bool = False) -> Groups:
    """The groups of one rank of the joined world; all ranks must call it for the same layouts."""
    place, replica, tensor = layout.coords(rank)
    pipeline = layout.pipeline_of(rank)
    ends = {layout.place(0), layout.place(layout.stages - 1)}  # the same place in a V-shaped pipeline

    @lru_cache
    def near(*ranks: int) -> Group:
        """The group of these ranks, shared by all uses: they start all their collectives in the same order."""
        return near_group(ranks, rank, store)

    # Torch names a group by how many groups its members are in already: those that some ranks lack come last.
    world = near(*range(layout.world))
    return Groups(
        store=store,
        world=world,
        totals=world if layout.flushes else near_table(range(layout.world), rank, store),
        links=near_links(pipeline, _links(layout), rank, store, layout.flushes),
        tensor=near(*(layout.rank(place, replica, t) for t in range(layout.widths[place]))),
        data=near(*(layout.rank(place, r, tensor) for r in range(layout.replicas[place]))),
        tied=near(*(layout.rank(end, replica, tensor) for end in sorted(ends))) if tied and place in ends else None,
    )


def _links(layout: Layout) -> list[Kind]:
    """The kinds of links: activations go to the next stage, gradients back; two in a line, four in a loop or a V."""
    places = [layout.place(stage) for stage in range(layout.stages)]
    ways = sorted({here < there for here, there in pairwise(places) if here != there}, reverse=True)
    return [(up, True) for up in ways] + [(not up, False) for up in ways]


@contextmanager
def joined() -> Iterator[None]:
    """A context for all that a rank does in the joined world; at its end the rank leaves the world.

    After a failure under NCCL it does not leave: destroying NCCL's groups waits for all their kernels
    (pytorch/pytorch pull 141510), and a receive that was posted ahead may wait for a message that is never sent. The
    end of the process ends them.
    """
    failed = True
    try:
        yield
        failed = False
    except Stopped:  # raised between two steps, on all ranks
        failed = False
        raise
    finally:
        if not failed or not dist.is_initialized() or dist.get_backend() != "nccl":
            disconnect()


def wait_for_all(store: dist.Store | None, rank: int, world: int) -> None:
    """To be called before leaving a world whose ranks are not waited for otherwise: rank 0, whose process holds the
    store, stays until all have called it, as others may still open connections through the store."""
    if store is None:
        return
    store.set(f"leaves/{rank}", "")
    while rank == 0 and not store.check([f"leaves/{other}" for other in range(world)]):
        time.sleep(_POLL_S)


def disconnect() -> None:
    """Leaves the world; does nothing if none was joined."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard_group(rank: int, layout: Layout, replicas: Group) -> dist.ProcessGroup | None:
    """The `replicas` of `rank` as a torch process group, for `fully_shard`; every rank must call it."""
    if isinstance(replicas, dist.ProcessGroup):
        return replicas
    place, _, tensor = layout.coords(rank)
    return _group([layout.rank(place, replica, tensor) for replica in range(layout.replicas[place])])


def near_group(ranks: Sequence[int], rank: int, store: dist.Store) -> Group:
    """The group of global `ranks`, all of which must call it: in memory for CPU ranks of one host, else torch's."""
    return _near(open_group, ranks, rank, store)


def common_group(ranks: Sequence[int], rank: int, store: dist.Store) -> Group:
    """`near_group` where ranks may be in different numbers of groups: every rank of the world must call it, and only
    members get the group. Torch names a group made by its members alone by how many groups they are in already."""
    member, near = rank in ranks, None
    if len(ranks) in (1, dist.get_world_size()):
        return near_group(ranks, rank, store) if member else None
    if dist.get_backend() == "gloo":
        near = open_group(ranks, rank, store) if member else None
        apart = torch.tensor(int(member and near is None))
        dist.all_reduce(apart)
        if not apart:
            return near
    made = common_torch_group(ranks)
    return made if member else None


def common_torch_group(ranks: Sequence[int]) -> dist.ProcessGroup:
    """A torch process group that every rank of the world must call for, members or not: then its name is the same on
    all of them, however many groups each is in."""
    made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT)
    return made


def near_table(ranks: Sequence[int], rank: int, store: dist.Store) -> TableGroup:
    """The group that gathers among global `ranks`, all of which must call it, without synchronising them; else as
    `near_group`."""
    return _near(open_table, ranks, rank, store)


def _near(
    open_near: Callable[[Sequence[int], int, dist.Store], Near | None],
    ranks: Sequence[int],
    rank: int,
    store: dist.Store,
) -> Near | dist.ProcessGroup | None:
    """What `open_near` opens through memory, or a torch process group if it returns None (the ranks are not all on one
    host)."""
    near = open_near(ranks, rank, store) if len(ranks) > 1 and dist.get_backend() == "gloo" else None
    return _group(ranks) if near is None else near


def near_links(
    ranks: Sequence[int], kinds: Sequence[Kind], rank: int, store: dist.Store, flushes: bool = True
) -> Mapping[Kind, LinkGroup]:
    """The links of each of `kinds` between global `ranks`, all of which must call it; as `near_group`.

    Each group carries only messages of its kind. In a pipeline that does not flush, the world is in use during the
    messages, so no link uses the world.
    """
    several = bool(kinds) and len(ranks) > 1 and dist.get_backend() == "gloo"
    if several and (near := open_links(ranks, kinds, rank, store)) is not None:
        return near
    return {kind: _group(ranks, fresh=i > 0 or not flushes) for i, kind in enumerate(kinds)}


def _group(ranks: Sequence[int], fresh: bool = False) -> dist.ProcessGroup | None:
    """The torch process group of global `ranks`, made by its members alone; None for a single rank.

    All ranks together get the world itself unless `fresh`.
    """
    if len(ranks) < 2:
        return None
    if len(ranks) == dist.get_world_size() and not fresh:
        return dist.group.WORLD
    made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT, use_local_synchronization=True)
    return made
