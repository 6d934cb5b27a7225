"""Sets up process groups: the store, the world, and the smaller groups that a rank belongs to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

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
from parallel_core.engine.host_group import HostGroup
from parallel_core.engine.meeting import OPEN_S, meet, opened, tell_failed
from parallel_core.engine.near_groups import TIMEOUT, own_group, own_links, own_torch_group, world_table
from parallel_core.engine.stop import AgreedEnd
from parallel_core.layout import Layout
from parallel_core.schedule.ways import BACK, LinkKind

_POLL_S = 0.02
WARM_UP_SIZES = (1, 1 << 16, 1 << 24)
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

    def open_store(self, limit: timedelta = TIMEOUT) -> dist.Store:
        """Opens the store, or a connection to it. Raises ConnectionRefusedError where it was on another host and is
        gone, and torch's errors after `limit`."""
        if self.node is None or self.is_host:
            return self._open(limit)
        store = opened(self._open, self.host, self.port, limit.total_seconds())
        store.set_timeout(TIMEOUT)
        return store

    def _open(self, limit: timedelta) -> dist.TCPStore:
        return dist.TCPStore(
            self.host,
            self.port,
            self.world,
            is_master=self.is_host,
            timeout=limit,
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
    fingerprints: TableGroup = None
    """As `totals`, for fingerprints: there are other numbers of them."""
    tensor: Group = None
    data: Group = None
    links: Mapping[LinkKind, LinkGroup] = field(default_factory=dict)
    """Kind of messages -> group of the pipeline's ranks.

    In each group a pair of ranks sends in one direction and one kind of message. So messages arrive in order, and a
    receive that is posted early never blocks a send (NCCL executes the messages of a pair in order).
    """
    tied: Group = None
    """The ranks of the first and last stage of a pipeline if they share the embedding and are different ranks."""


def connect(
    rendezvous: Rendezvous, rank: int, layout: Layout, backend: str, tied: bool = False, generates: bool = False
) -> Groups:
    """Joins the world and makes this rank's groups. A world of one rank needs neither store nor groups.

    `generates`: the run generates text, so the last stage sends to all others (`relay`).
    """
    if layout.world == 1:
        return Groups()
    store = rendezvous.open_store()
    if rendezvous.node is not None:
        meet(store, rank, layout.world, TIMEOUT.total_seconds())
    dist.init_process_group(backend, store=store, rank=rank, world_size=layout.world, timeout=TIMEOUT)
    groups = groups_of(rank, layout, store, tied)
    if backend == "nccl":
        warm_up(groups, rank, layout, torch.device("cuda", torch.cuda.current_device()), generates)
    return groups


@contextmanager
def awaited(rendezvous: Rendezvous, rank: int) -> Iterator[None]:
    """A context for what a rank does before it calls `connect`: if that fails, those that wait on other hosts are told,
    and why."""
    try:
        yield
    except Exception as error:
        if rendezvous.node is not None and not rendezvous.is_host:
            with suppress(RuntimeError, OSError):  # they may have ended, too
                how = f"{type(error).__name__}: {str(error)[:500]}"
                tell_failed(rendezvous.open_store(timedelta(seconds=OPEN_S)), rank, how)
        raise


def warm_up(groups: Groups, rank: int, layout: Layout, device: torch.device, generates: bool = False) -> None:
    """Uses every group, and every pair of ranks that will exchange messages, once, in the same order on all ranks.

    NCCL opens a communicator at its first use, where the host waits for the other members. Within a step that could
    deadlock: a receive is posted long before its sender can reach the send, as it may still wait for this rank.
    """
    one, all_of = torch.zeros(1, device=device), torch.empty(layout.world, device=device)
    at_work = groups.tensor, groups.data, groups.tied
    for group in dict.fromkeys((groups.world, *at_work)):
        if group is not None:
            use(group, device, WARM_UP_SIZES if group in at_work else WARM_UP_SIZES[:1])
    all_gather(all_of, one, groups.totals).wait()
    for kind, link in sorted(groups.links.items()):
        for sender, receiver in pairs(rank, layout, kind, generates):
            work = isend(one, receiver, link) if sender == rank else irecv(one, sender, link)
            work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use(group: dist.ProcessGroup | HostGroup, device: torch.device, sizes: Sequence[int] = WARM_UP_SIZES) -> None:
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


def pairs(rank: int, layout: Layout, kind: LinkKind, generates: bool = False) -> list[tuple[int, int]]:
    """(sender, receiver), ascending, of the messages of `kind` that `rank` sends or receives, from stage to stage;
    where it `generates`, those that hand tokens back, too.

    Only these: for each pair NCCL opens a communicator (`rules.communicators`).
    """
    here, found = layout.coords(rank).place, set[tuple[int, int]]()
    for sends, receives in layout.ways.get(kind, ()):
        if sends == here:
            found |= {(rank, receiver) for receiver in layout.neighbours(rank, receives)[1]}
        elif receives == here:
            found |= {(sender, rank) for sender in layout.neighbours(rank, sends)[0]}
    if generates and kind == BACK:
        *others, last = layout.pipeline_of(rank)
        found |= {(last, other) for other in others if rank in (last, other)}
    return sorted(found)


def shard_group(rank: int, layout: Layout, replicas: Group) -> dist.ProcessGroup | None:
    """The `replicas` of `rank` as a torch process group, for `fully_shard`; every rank must call it."""
    if isinstance(replicas, dist.ProcessGroup) and dist.get_backend() != "gloo":
        return replicas
    return own_torch_group(layout.data_groups(), rank)  # under gloo some ranks may have theirs in memory


def groups_of(rank: int, layout: Layout, store: dist.Store, tied: bool = False) -> Groups:
    """The groups of one rank of the joined world; all ranks must call it for the same layouts."""
    everyone = range(layout.world)
    world = own_group([everyone], rank, store)

    def own(groups: Sequence[Sequence[int]]) -> Group:
        """One of all ranks is the world, shared by all uses: they start all their collectives in the same order."""
        return world if len(groups[0]) == layout.world else own_group(groups, rank, store)

    pipelines = tuple(dict.fromkeys(map(layout.pipeline_of, everyone)))
    return Groups(
        store=store,
        world=world,
        totals=world if layout.flushes else world_table(rank, store),
        fingerprints=world if layout.flushes else world_table(rank, store),
        links=own_links(pipelines, tuple(layout.ways), rank, store, layout.flushes),
        tensor=own(layout.tensor_groups()),
        data=own(layout.data_groups()),
        tied=own(layout.end_groups()) if tied else None,
    )


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
    except AgreedEnd:  # raised between two steps, on all ranks
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
