"""Messages between ranks of one host, through memory that they share: for CPU ranks, in place of gloo's sockets.

From each rank to each other one there is a channel: slots, and the numbers of those that are full, first in, first out.
A send copies its tensor into a free slot and is over; the receiver copies it out where it waits for it. The slot that
was freed last is used next, so only as many are ever touched as there were messages under way.
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
from parallel_core.engine.host_peers import NOBODY, Peers

SLOTS = 256
"""Messages that may be under way on a channel, at least; one more than there are slots waits for a free one."""
_SOON_S = 1e-3
_LINE = 64
_PAGE = 4096

Kind = tuple[bool, bool]
"""See `distributed.Groups.links`."""


class Form(NamedTuple):
    """Of a channel: `slots` (a power of two, for numbers go round in 32 bits) of `size` bytes."""

    size: int
    slots: int = SLOTS

    @classmethod
    def of(cls, size: int, messages: int) -> Form:
        """For messages of `size` bytes at most, of which `messages` may be under way with nobody waiting."""
        return cls(size, max(SLOTS, 1 << max(0, messages - 1).bit_length()))

    @property
    def head(self) -> int:
        """Bytes of the counters, and of the numbers of full and of empty slots."""
        return _pages(2 * _LINE + 8 * self.slots)

    @property
    def room(self) -> int:
        return max(_PAGE, _pages(self.size))

    @property
    def length(self) -> int:
        return self.head + self.slots * self.room


class Channel:
    """One end of what goes from one rank to another, in messages of `form.size` bytes at most."""

    def __init__(self, memory: mmap.mmap, form: Form, peers: Peers = NOBODY) -> None:
        self._posted, self._freed, self._peers = Counter(memory, 0), Counter(memory, _LINE), peers
        self._count = form.slots
        numbers = np.frombuffer(memory, np.int32, 2 * form.slots, 2 * _LINE)
        self._full, self._empty = numbers[: form.slots], numbers[form.slots :]
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=form.head)
        self._slots = slots.view(form.slots, form.room)
        self._views: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        """Of slots, as the tensors that go through them: behind a layer's work the code that makes one is cold."""
        self._free = list(reversed(range(form.slots)))
        self._sent = self._taken = self._back = 0

    def put(self, tensor: Tensor) -> None:
        """Sends; waits only where every slot is full."""
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
        """Receives the next message."""
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
    """The work of a message that is out of the sender's hands."""

    def wait(self) -> bool:
        return True


SENT = Sent()


class Awaited:
    """The work of a receive; those of a channel are waited for in the order in which they were posted."""

    def __init__(self, links: HostLinks, giver: int, tensor: Tensor) -> None:
        self._links, self._giver, self._tensor, self._done = links, giver, tensor, False

    def wait(self) -> bool:
        if not self._done:  # a second wait must not take the next message
            self._done = True
            self._links.take(self._giver, self._tensor)
        return True


class HostLinks:
    """The messages of one kind that global rank `rank` has with others of its host, through channels of `form`."""

    def __init__(self, name: str, rank: int, store: dist.Store, peers: Peers = NOBODY) -> None:
        self._name, self._rank, self._store, self._peers = name, rank, store, peers
        self.form = Form(0)
        """Set, alike on all ranks, before the first message."""
        self._to: dict[int, Channel] = {}
        self._of: dict[int, Channel] = {}
        self._files: list[int] = []

    def isend(self, tensor: Tensor, taker: int) -> Sent:
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # the slots are nobody's activations
            channel = self._to.get(taker) or self._open_to(taker)
            channel.put(tensor)
        return SENT

    def irecv(self, tensor: Tensor, giver: int) -> Awaited:
        return Awaited(self, giver, tensor)

    def take(self, giver: int, tensor: Tensor) -> None:
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            channel = self._of.get(giver) or self._open_of(giver)
            channel.take(tensor)

    def _open_to(self, taker: int) -> Channel:
        """Made by who sends; the file stays open until the process ends, for the other end finds it here."""
        length = self.form.length
        file = host_memory.create(length)
        told = host_memory.address(file)
        memory = host_memory.open_file(told, length)
        if file is None or memory is None:
            raise OSError(
                f"{length:,} bytes of address space that ranks of this host share cannot be had for messages from rank "
                f"{self._rank} to rank {taker}; {host_memory.SWITCH}=0 sends them through sockets"
            )
        self._files.append(file)
        self._store.set(self._key(self._rank, taker), told)
        made = self._to[taker] = Channel(memory, self.form, self._peers)
        return made

    def _open_of(self, giver: int) -> Channel:
        key = self._key(giver, self._rank)
        while not self._store.check([key]):  # a store that waits would keep a send of another thread waiting
            self._peers.look()
            time.sleep(_SOON_S)
        told = self._store.get(key).decode()
        memory = host_memory.open_file(told, self.form.length)
        if memory is None:
            raise OSError(f"rank {giver} has sent something through memory that this rank cannot open: {told}")
        made = self._of[giver] = Channel(memory, self.form, self._peers)
        return made

    def _key(self, giver: int, taker: int) -> str:
        return f"{self._name}/{giver}-{taker}"


def open_links(
    ranks: Sequence[int], kinds: Sequence[Kind], rank: int, store: dist.Store
) -> dict[Kind, HostLinks] | None:
    """Links of each kind between the global `ranks`, all of which ask for them; None where not all can share memory."""
    name = host_group.meeting(ranks)
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
    """Counts as a 32 bit number in memory does."""
    return (count + 1 + 2**31) % 2**32 - 2**31
