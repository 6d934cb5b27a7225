"""Shared memory between ranks in edge cases: wrap-around counters, peers that end, memory that is not available."""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from parallel_core.engine import host_memory
from parallel_core.engine.host_group import HostGroup, length_of
from parallel_core.engine.host_links import SLOTS, Channel, ChannelLayout
from parallel_core.engine.host_memory import Counter
from parallel_core.engine.host_peers import Peers

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not hasattr(os, "memfd_create"), reason="ranks share memory on Linux on x86 alone"
)
LAST = 2**31 - 1
"""The largest signed 32-bit number; the next one would be negative."""


@pytest.fixture
def file() -> Iterator[int]:
    made = host_memory.create(mmap.PAGESIZE)
    assert made is not None
    yield made
    os.close(made)


def test_messages_go_on_where_their_numbers_go_round() -> None:
    layout = ChannelLayout(64)
    memory = mmap.mmap(-1, layout.length)
    sender, receiver = Channel(memory, layout), Channel(memory, layout)
    sender._sent = sender._back = receiver._taken = LAST - 5
    for counter in (sender._posted, sender._freed):
        counter.tell(LAST - 5)
    for ahead in (1, 3, SLOTS):
        for i in range(ahead):
            sender.put(torch.tensor([i, -i]))
        for i in range(ahead):
            receiver.take(got := torch.empty(2, dtype=torch.int64))
            assert got.tolist() == [i, -i]
    assert sender._sent == receiver._taken < 0


def test_collectives_go_on_where_their_turns_go_round() -> None:
    memory = mmap.mmap(-1, length_of(2))
    groups = [HostGroup(memory, rank, 2) for rank in range(2)]
    mine = [torch.full((3,), float(rank + 1)) for rank in range(2)]
    for group in groups:
        group._turn = LAST - 4
        for counter in group._counters[group.rank]:
            counter.tell(LAST - 4)

    def sum_up(group: HostGroup) -> None:
        for _ in range(10):
            group.all_reduce(mine[group.rank]).wait()

    at_once(sum_up, groups)
    assert [tensor.tolist() for tensor in mine] == [[3.0 * 2**9] * 3] * 2


def at_once(act: Callable[[HostGroup], None], groups: Sequence[HostGroup]) -> None:
    """Calls `act` with each of the groups, in threads."""
    threads = [threading.Thread(target=act, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize("size", [33, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_more_ranks_than_a_page_has_counters(size: int, dtype: torch.dtype) -> None:
    memory = mmap.mmap(-1, length_of(size))
    mine = [torch.ones(1000, dtype=dtype) for _ in range(size)]

    def sum_up(group: HostGroup) -> None:
        for tensor in (mine[group.rank], mine[group.rank]):
            group.all_reduce(tensor).wait()

    at_once(sum_up, [HostGroup(memory, rank, size) for rank in range(size)])
    assert all(torch.equal(tensor, torch.full_like(tensor, size**2)) for tensor in mine)


def test_a_collective_that_failed_fails_whenever_it_is_waited_for() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    group = HostGroup(mmap.mmap(-1, length_of(2)), 0, 2, Peers({1: pid}))
    first, second = (group.all_reduce(torch.ones(2)) for _ in range(2))
    for work in (second, first, second):
        with pytest.raises(ConnectionResetError):
            work.wait()
    os.waitpid(pid, 0)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        group.all_reduce(torch.ones(4, 4).t())


def test_a_step_of_many_micro_batches_is_sent_with_nobody_taking() -> None:
    layout = ChannelLayout.of(8, SLOTS * 4 - 1)
    channel = Channel(mmap.mmap(-1, layout.length), layout)
    for _ in range(SLOTS * 4 - 1):
        channel.put(torch.zeros(2))
    assert ChannelLayout.of(8, 3).slots == SLOTS


def test_a_message_that_is_too_long_is_said_so() -> None:
    layout = ChannelLayout(8)
    channel = Channel(mmap.mmap(-1, layout.length), layout)
    with pytest.raises(ValueError, match=r"4,104 bytes does not fit a slot of 4,096"):
        channel.put(torch.zeros(513, dtype=torch.float64))


@pytest.mark.parametrize("reaped", [False, True])
def test_who_waits_for_a_rank_that_ended_is_told(file: int, reaped: bool) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    if reaped:
        os.waitpid(pid, 0)
    counter = Counter(mmap.mmap(file, mmap.PAGESIZE), 0)
    with pytest.raises(ConnectionResetError, match="closed by peer: rank 5"):
        counter.reach(1, Peers({4: os.getpid(), 5: pid}).look)
    counter.tell(1)
    counter.reach(1, Peers({5: pid}).look)  # what it published before it ended is valid
    if not reaped:
        os.waitpid(pid, 0)


def test_only_the_memory_that_was_meant_is_opened(file: int) -> None:
    """Processes in another container have the same numbers, but a file of the same path there is a different one."""
    told = host_memory.address(file)
    assert host_memory.open_file(told, mmap.PAGESIZE) is not None
    assert host_memory.open_file(told, mmap.PAGESIZE + 1) is None, "it is shorter"
    with tempfile.TemporaryFile() as other:
        os.ftruncate(other.fileno(), mmap.PAGESIZE)
        elsewhere = told.rpartition("/")[0] + f"/{other.fileno()}"
        assert host_memory.open_file(elsewhere, mmap.PAGESIZE) is None
    assert host_memory.open_file("x" + told, mmap.PAGESIZE) is None, "of another host"
    assert str(Path("/proc/self/ns/pid").readlink()) in told


def test_without_memory_there_are_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert host_memory.create(8) is None
    assert host_memory.open_file(host_memory.address(None), 8) is None
