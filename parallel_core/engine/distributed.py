"""Process-group set-up: one store, the world, and the smaller groups a rank belongs to."""

from __future__ import annotations

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

TIMEOUT = timedelta(minutes=10)
"""Of a collective; a hang is found long before by the no-progress watchdog."""

Near = TypeVar("Near", HostGroup, HostTable)
"""What ranks of one host talk through."""
MET = (1, 1 << 16, 1 << 24)
"""Elements of the messages that groups are first used with: up to 64 MiB, as large as those of a step."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a run find each other. `listen_fd` is a socket the host of the store already listens on.

    With `port` = 0 and no socket the host takes a free port (`open_store` returns a store that knows it).
    """

    host: str
    port: int
    world: int
    is_host: bool
    listen_fd: int | None = None
    sharing: int = 1
    """Ranks on one GPU; NCCL refuses several."""
    node: int | None = None
    """The first rank of this host, where the ranks are on several; None where all are on one."""

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
    """All ranks, for the totals of steps. In a pipeline that stays full they travel while ranks are steps apart."""
    tensor: Group = None
    data: Group = None
    links: Mapping[tuple[bool, bool], LinkGroup] = field(default_factory=dict)
    """(to a higher pipeline rank?, activations?) -> group of the pipeline.

    In each of them a pair of ranks sends one way and one kind, so that messages are first in, first out and a receive
    posted early never stands in front of a send (NCCL runs the messages of a pair in order).
    """
    tied: Group = None
    """First and last stage of a pipeline, where they share the embedding and stand on two ranks."""


def connect(rendezvous: Rendezvous, rank: int, layout: Layout, backend: str, tied: bool = False) -> Groups:
    """Join the world and make this rank's groups. A world of one needs neither store nor group."""
    if layout.world == 1:
        return Groups()
    store = rendezvous.open_store()
    dist.init_process_group(backend, store=store, rank=rank, world_size=layout.world, timeout=TIMEOUT)
    groups = groups_of(rank, layout, store, tied)
    if backend == "nccl":
        meet(groups, rank, layout, torch.device("cuda", torch.cuda.current_device()))
    return groups


def meet(groups: Groups, rank: int, layout: Layout, device: torch.device) -> None:
    """Uses every group once, and every pair of ranks that will send, in an order that all ranks share.

    NCCL opens a communicator at its first use, in which the host waits for the other members. Within a step it would
    wait there for a rank that waits for it: a receive is posted long before what its sender needs to get that far.
    """
    one, all_of = torch.zeros(1, device=device), torch.empty(layout.world, device=device)
    at_work = groups.tensor, groups.data, groups.tied
    for group in dict.fromkeys((groups.world, *at_work)):
        if group is not None:
            use(group, device, MET if group in at_work else MET[:1])
    all_gather(all_of, one, groups.totals).wait()
    for kind, link in sorted(groups.links.items()):
        for giver, taker in pairs(rank, layout, kind[0]):
            work = isend(one, taker, link) if giver == rank else irecv(one, giver, link)
            work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use(group: dist.ProcessGroup | HostGroup, device: torch.device, sizes: Sequence[int] = MET) -> None:
    """Every kind of collective once of each size: NCCL connects the ranks of a group when it first takes a way to send
    (a ring, a tree: docs.nvidia.com, NCCL, NCCL_RUNTIME_CONNECT), and which it takes goes by kind and size."""
    ranks = size_of(group)
    for size in sizes:
        each = -(-size // ranks)
        whole = torch.zeros(each * ranks, device=device)
        part = whole[:each].clone()
        all_reduce(whole, group).wait()
        all_gather(whole, part, group).wait()
        reduce_scatter(part, whole, group).wait()


def pairs(rank: int, layout: Layout, up: bool) -> list[tuple[int, int]]:
    """(giver, taker), ascending, of `rank`'s messages to higher pipeline ranks, or to lower ones."""
    here, found = layout.pipeline_rank(rank), set()
    for other in layout.linked(layout.coords(rank).replica):
        if other != here:
            sent = {(rank, taker) for taker in layout.takers(rank, other)} if (other > here) == up else set()
            found |= sent | ({(layout.giver(rank, other), rank)} if (other < here) == up else set())
    return sorted(found)


def groups_of(rank: int, layout: Layout, store: dist.Store, tied: bool = False) -> Groups:
    """The groups of a rank of the world that was joined; every rank of it asks for those of the same layouts."""
    place, replica, tensor = layout.coords(rank)
    pipeline = layout.pipeline_of(rank)
    ends = {layout.place(0), layout.place(layout.stages - 1)}  # one place, where the pipeline is a V

    @lru_cache
    def near(*ranks: int) -> Group:
        """One group of these ranks, whatever it is for: they begin everything in the same order."""
        return near_group(ranks, rank, store)

    # A group is named by how many its members are in already: tensor and data groups, which some lack, come behind.
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
    """Activations go to where the next stage stands, gradients back: two links on a line, four in a loop or a V."""
    places = [layout.place(stage) for stage in range(layout.stages)]
    ways = sorted({here < there for here, there in pairwise(places) if here != there}, reverse=True)
    return [(up, True) for up in ways] + [(not up, False) for up in ways]


@contextmanager
def joined() -> Iterator[None]:
    """Around everything that a rank does in the world that it joined: behind it the rank leaves.

    One that failed stays, where messages are kernels: NCCL's end waits for all of them (pytorch/pytorch pull 141510),
    and of a receive that was posted ahead nobody may ever send what it waits for. Its process ends, and they with it.
    """
    failed = True
    try:
        yield
        failed = False
    except Stopped:  # between two steps, all ranks alike
        failed = False
        raise
    finally:
        if not failed or not dist.is_initialized() or dist.get_backend() != "nccl":
            disconnect()


def disconnect() -> None:
    """Leave the world; a no-op where there was none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def shard_group(rank: int, layout: Layout, replicas: Group) -> dist.ProcessGroup | None:
    """The `replicas` of `rank` as a group of torch's own, for `fully_shard`; every rank asks for its own."""
    if isinstance(replicas, dist.ProcessGroup):
        return replicas
    place, _, tensor = layout.coords(rank)
    return _group([layout.rank(place, replica, tensor) for replica in range(layout.replicas[place])])


def near_group(ranks: Sequence[int], rank: int, store: dist.Store) -> Group:
    """The group of global `ranks`, all of which ask for it: CPU ranks of one host talk through memory."""
    return _near(open_group, ranks, rank, store)


def common_group(ranks: Sequence[int], rank: int, store: dist.Store) -> Group:
    """`near_group` for groups of which a rank is in more than its neighbour: every rank of the world asks for it, and
    members alone get it. Torch names a group that its members make by themselves by how many they are in already."""
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
    """One of torch's own, which every rank of the world asks for, members or not: then it has one name on all of them,
    however many groups each is in already."""
    made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT)
    return made


def near_table(ranks: Sequence[int], rank: int, store: dist.Store) -> TableGroup:
    """What gathers among global `ranks`, all of which ask for it, without their meeting; as `near_group`."""
    return _near(open_table, ranks, rank, store)


def _near(
    open_near: Callable[[Sequence[int], int, dist.Store], Near | None],
    ranks: Sequence[int],
    rank: int,
    store: dist.Store,
) -> Near | dist.ProcessGroup | None:
    """What `open_near` opens through memory (None: they are not all on one host), else a group of torch's own."""
    near = open_near(ranks, rank, store) if len(ranks) > 1 and dist.get_backend() == "gloo" else None
    return _group(ranks) if near is None else near


def near_links(
    ranks: Sequence[int], kinds: Sequence[Kind], rank: int, store: dist.Store, flushes: bool = True
) -> Mapping[Kind, LinkGroup]:
    """The links of each of `kinds` between global `ranks`, all of which ask for them, as `near_group`.

    A group is for nothing but the messages of its kind; beside a pipeline that stays full the world is at work all the
    time, so none of them is the world.
    """
    several = bool(kinds) and len(ranks) > 1 and dist.get_backend() == "gloo"
    if several and (near := open_links(ranks, kinds, rank, store)) is not None:
        return near
    return {kind: _group(ranks, fresh=i > 0 or not flushes) for i, kind in enumerate(kinds)}


def _group(ranks: Sequence[int], fresh: bool = False) -> dist.ProcessGroup | None:
    """The group of global `ranks`, made by its members alone; the world itself where that is who they are."""
    if len(ranks) < 2:
        return None
    if len(ranks) == dist.get_world_size() and not fresh:
        return dist.group.WORLD
    made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT, use_local_synchronization=True)
    return made
