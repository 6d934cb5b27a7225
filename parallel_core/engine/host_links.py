"""Point-to-point messages between CPU ranks of one host through shared memory, in place of gloo's sockets.

There is a channel from each rank to each other rank: a set of slots, and a first-in, first-out queue of the numbers
of the full ones. A send copies its tensor into a free slot and is complete; the receiver copies it out when it waits.
The most recently freed slot is used next, so only as many slots are ever touched as there were messages in flight.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine import host_group, host_memory
from parallel_core.engine.host_memory import Counter
from parallel_core.engine.host_peers import NO_PEERS, Peers
from parallel_core.schedule.ways import LinkKind

SLOTS = 256
"""Minimum number of slots of a channel: messages in flight before a send has to wait for a free slot."""
_SOON_S = 1e-3
_LINE = 64
_PAGE = 4096


class ChannelLayout(NamedTuple):
    """The layout of a channel: `slots` (a power of two, since the 32-bit counters wrap around) of `size` bytes each."""

    size: int
    slots: int = SLOTS

    @classmethod
    def of(cls, size: int, messages: int) -> ChannelLayout:
        """Returns the layout for messages of at most `size` bytes, `messages` of which may be in flight before any is
        received."""
        return cls(size, max(SLOTS, 1 << max(0, messages - 1).bit_length()))

    @property
    def head(self) -> int:
        """Bytes of the counters and of the queues of full and of empty slots."""
        return _pages(2 * _LINE + 8 * self.slots)

    @property
    def room(self) -> int:
        """Bytes of a slot, in whole pages."""
        return max(_PAGE, _pages(self.size))

    @property
    def length(self) -> int:
        """Bytes of the whole channel."""
        return self.head + self.slots * self.room


class Channel:
    """One end of the messages from one rank to another, of at most `layout.size` bytes each."""

    def __init__(self, memory: mmap.mmap, layout: ChannelLayout, peers: Peers = NO_PEERS) -> None:
        self._posted, self._freed, self._peers = Counter(memory, 0), Counter(memory, _LINE), peers
        self._count = layout.slots
        numbers = np.frombuffer(memory, np.int32, 2 * layout.slots, 2 * _LINE)
        self._full, self._empty = numbers[: layout.slots], numbers[layout.slots :]
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=layout.head)
        self._slots = slots.view(layout.slots, layout.room)
        self._views: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        """Cached views of slots: right after a layer's computation, making one is slow."""
        self._free = list(reversed(range(layout.slots)))
        self._sent = self._taken = self._back = 0

    def put(self, tensor: Tensor) -> None:
        """Sends the tensor; waits only where every slot is full."""
        if not self._free:
            self._freed.reach(self._back + 1, self._peers.look)
        while self._back != self._freed.value:
            self._free.append(int(self._empty[self._back % self._count]))
            self._back = _next(self._back)
        slot = self._free.pop()
        self._view(slot, tensor).copy_(tensor)
        self._full[self._sent % self._count] = slot
        self._sent = _next(self._sent)
        self._posted.tell(self._sent)

    def take(self, tensor: Tensor) -> None:
        """Receives the next message into the tensor; waits for it."""
        self._posted.reach(self._taken + 1, self._peers.look)
        slot = int(self._full[self._taken % self._count])
        tensor.copy_(self._view(slot, tensor))
        self._empty[self._taken % self._count] = slot
        self._taken = _next(self._taken)
        self._freed.tell(self._taken)

    def _view(self, slot: int, like: Tensor) -> Tensor:
        key = slot, like.shape, like.dtype
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = _view(self._slots[slot], like)
        return known


class Sent:
    """The work of a send, which is complete when `isend` returns."""

    def wait(self) -> bool:
        return True


SENT = Sent()


class Awaited:
    """The work of a receive. The receives of a channel must be waited for in the order in which they were posted."""

    def __init__(self, links: HostLinks, sender: int, tensor: Tensor) -> None:
        self._links, self._sender, self._tensor, self._done = links, sender, tensor, False

    def wait(self) -> bool:
        if not self._done:  # a second wait must not consume the next message
            self._done = True
            self._links.take(self._sender, self._tensor)
        return True


class HostLinks:
    """The messages of one kind between global rank `rank` and others of its host, through channels of `layout`."""

    def __init__(self, name: str, rank: int, store: dist.Store, peers: Peers = NO_PEERS) -> None:
        self._name, self._rank, self._store, self._peers = name, rank, store, peers
        self.layout = ChannelLayout(0)
        """Must be set before the first message, to the same value on all ranks."""
        self._outgoing: dict[int, Channel] = {}
        self._incoming: dict[int, Channel] = {}
        self._files: list[int] = []

    def isend(self, tensor: Tensor, receiver: int) -> Sent:
        """Sends the tensor to global rank `receiver`; opens the channel at the first message."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # the memory meter must not count the slots
            channel = self._outgoing.get(receiver) or self._open_to(receiver)
            channel.put(tensor)
        return SENT

    def irecv(self, tensor: Tensor, sender: int) -> Awaited:
        """Returns a receive from global rank `sender` into the tensor, which is done when it is waited for."""
        return Awaited(self, sender, tensor)

    def take(self, sender: int, tensor: Tensor) -> None:
        """Receives the next message from global rank `sender` into the tensor; waits for it."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            channel = self._incoming.get(sender) or self._open_of(sender)
            channel.take(tensor)

    def _open_to(self, receiver: int) -> Channel:
        """Creates the channel to `receiver`. The sender keeps the file open until its process ends, since the receiver
        opens it there."""
        length = self.layout.length
        file = host_memory.create(length)
        told = host_memory.address(file)
        memory = host_memory.open_file(told, length)
        if file is None or memory is None:
            raise OSError(
                f"{length:,} bytes of address space that ranks of this host share cannot be had for messages from rank "
                f"{self._rank} to rank {receiver}; {host_memory.SWITCH}=0 sends them through sockets"
            )
        self._files.append(file)
        self._store.set(self._key(self._rank, receiver), told)
        made = self._outgoing[receiver] = Channel(memory, self.layout, self._peers)
        return made

    def _open_of(self, sender: int) -> Channel:
        key = self._key(sender, self._rank)
        while not self._store.check([key]):  # a blocking `get` would also block another thread's use of the store
            self._peers.look()
            time.sleep(_SOON_S)
        told = self._store.get(key).decode()
        memory = host_memory.open_file(told, self.layout.length)
        if memory is None:
            raise OSError(f"rank {sender} has sent something through memory that this rank cannot open: {told}")
        made = self._incoming[sender] = Channel(memory, self.layout, self._peers)
        return made

    def _key(self, sender: int, receiver: int) -> str:
        return f"{self._name}/{sender}-{receiver}"


def open_links(
    ranks: Sequence[int], kinds: Sequence[LinkKind], rank: int, store: dist.Store
) -> dict[LinkKind, HostLinks] | None:
    """Links of each kind between the global `ranks`, all of which must call it; None where not all can share memory."""
    name = host_group.new_key(ranks)
    shared = host_group.share(name, ranks, rank, store, _PAGE)
    if shared is None:
        return None
    return {kind: HostLinks(f"{name}/{kind[0]:d}{kind[1]:d}", rank, store, shared.peers) for kind in kinds}


def _pages(size: int) -> int:
    return math.ceil(size / _PAGE) * _PAGE


def _view(slot: Tensor, like: Tensor) -> Tensor:
    if like.nbytes > len(slot):
        raise ValueError(f"a message of {like.nbytes:,} bytes does not fit a slot of {len(slot):,}")
    return slot[: like.nbytes].view(like.dtype).view(like.shape)


def _next(count: int) -> int:
    """Returns `count` + 1, wrapped around like a signed 32-bit integer."""
    return (count + 1 + 2**31) % 2**32 - 2**31
