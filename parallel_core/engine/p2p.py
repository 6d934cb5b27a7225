"""Point-to-point messages between stages: receives posted ahead, sends that nobody waits for.

A RECV of the program is where the rank waits; the receive itself is posted up to AHEAD messages earlier, so that the
data moves while the rank computes. A send returns at once; its tensor is kept until it is known to have arrived
(gloo's send is a rendezvous, and a Work that is dropped may drop its buffer with it).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parallel_core.engine.collectives import LinkGroup, irecv, isend
from parallel_core.engine.device import Device
from parallel_core.engine.host_links import Form, HostLinks
from parallel_core.engine.injected import SlowLink
from parallel_core.schedule.ir import AHEAD, RECVS, Kind, Op
from parallel_core.schedule.send_completion import Key, key

Link = tuple[int, bool]
"""Peer (a pipeline rank), and whether activations (or gradients) travel: each is first in, first out."""


class Traffic(NamedTuple):
    """What (a part of) a rank's program has to do with its links."""

    receives: dict[Link, list[Op]]
    proves: dict[Key, list[Key]]
    """See `receipts`."""

    @classmethod
    def of(cls, program: Sequence[Op], proves: dict[Key, list[Key]]) -> Traffic:
        receives: dict[Link, list[Op]] = {}
        for op in program:
            if op.kind in RECVS:
                receives.setdefault(_link(op), []).append(op)
        return cls(receives, proves)


class _Posted(NamedTuple):
    buffer: Tensor
    work: Any


class Peer(NamedTuple):
    """Global ranks of another pipeline rank: that one which sends to this rank, and those that this one sends to."""

    giver: int
    takers: tuple[int, ...]


class Links:
    """The links of one rank to the others of its pipeline. `edges[s]` is the shape of what enters stage s.

    `here` is this rank's pipeline rank, `peers` maps the others to who of them it deals with (`Layout.giver`,
    `takers`); `groups` are `distributed.Groups.links`; messages to the global rank r are `delay(r)` seconds late.
    """

    def __init__(
        self,
        here: int,
        peers: Mapping[int, Peer],
        groups: Mapping[tuple[bool, bool], LinkGroup],
        edges: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        device: Device,
        delay: Callable[[int], float] = lambda rank: 0.0,
        mark: int = 0,
        messages: int = 0,
    ) -> None:
        """`mark`: elements behind a gradient in its message (`scaled`), which is flat then; `messages`: no fewer than a
        rank sends to another in a step, all of which it may send before the other takes one."""
        self._here, self._peers, self._groups, self._edges = here, peers, groups, edges
        self._dtype, self._device, self._mark = dtype, device.torch, mark
        self._proves: Mapping[Key, Sequence[Key]] = {}
        self._left: dict[Link, deque[Op]] = {}
        self._posted: dict[Link, deque[_Posted]] = {}
        self._sent: dict[Key, tuple[list[Any], Tensor]] = {}
        largest = max((math.prod(edge) for edge in edges), default=0) + mark
        for group in groups.values():
            if isinstance(group, HostLinks):
                group.form = Form.of(largest * dtype.itemsize, messages)
        takers = [rank for peer in peers.values() for rank in peer.takers]
        self._slow = {rank: SlowLink(late) for rank in takers if (late := delay(rank))}

    def edge(self, stage: int) -> tuple[int, ...]:
        """Shape of what enters a stage, and of its gradient."""
        return self._edges[stage]

    def begin_step(self, traffic: Traffic) -> None:
        """What the receives of this step prove."""
        self._proves = traffic.proves

    def expect(self, traffic: Traffic) -> None:
        """These receives come behind all that are expected so far; posts the first ones."""
        for link, ops in traffic.receives.items():
            self._left.setdefault(link, deque()).extend(ops)
            posted = self._posted.setdefault(link, deque())
            for _ in range(AHEAD - len(posted)):
                self._post(link)

    def receive(self, op: Op) -> Tensor:
        """The tensor of a RECV operation; waits for it."""
        link = _link(op)
        buffer, work = self._posted[link].popleft()
        self._post(link)
        work.wait()
        for sent in self._proves.get(key(op), ()):
            self._release(sent)
        return buffer

    def send(self, op: Op, tensor: Tensor) -> int:
        """Start a SEND operation; the bytes that it moves. Of a wider tensor group not all have a taker."""
        tensor = tensor.contiguous()
        group = self._groups[op.peer > self._here, op.kind is Kind.SEND_ACT]
        takers = self._peers[op.peer].takers
        works = [self._start(partial(isend, tensor, rank, group), rank) for rank in takers]
        if works:
            self._sent[key(op)] = (works, tensor)
        return len(works) * tensor.nbytes

    def _start(self, send: Callable[[], Any], rank: int) -> Any:
        slow = self._slow.get(rank)
        return slow.isend(send) if slow else send()

    def end_step(self) -> None:
        """Wait until every send has arrived."""
        for sent in list(self._sent):
            self._release(sent)

    def renumber(self, by: int) -> None:
        """The step is over, and what was sent may be under way: ids count from the next one."""
        self._sent = {(kind, stage, i - by): sent for (kind, stage, i), sent in self._sent.items()}

    def _release(self, sent: Key) -> None:
        works, _ = self._sent.pop(sent, ((), None))
        for work in works:
            work.wait()

    def _post(self, link: Link) -> None:
        if not self._left[link]:
            return
        op, (peer, activations) = self._left[link].popleft(), link
        shape = self._edges[op.stage if activations else op.stage + 1]
        if self._mark and not activations:
            shape = (math.prod(shape) + self._mark,)
        buffer = torch.empty(shape, dtype=self._dtype, device=self._device)
        work = irecv(buffer, self._peers[peer].giver, self._groups[peer < self._here, activations])
        self._posted[link].append(_Posted(buffer, work))


def _link(op: Op) -> Link:
    return op.peer, op.kind in (Kind.SEND_ACT, Kind.RECV_ACT)
