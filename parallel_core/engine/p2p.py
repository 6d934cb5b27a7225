"""Point-to-point messages between stages: receives posted ahead, sends that nobody waits for.

A RECV of the program is where the rank waits; the receive itself is posted up to AHEAD messages earlier, so that the
data moves while the rank computes. A send returns at once; its tensor is kept until it is known to have arrived
(gloo's send is a rendezvous, and a Work that is dropped may drop its buffer with it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Group
from parallel_core.engine.injected import SlowLink
from parallel_core.engine.receipts import Key, key, receipts
from parallel_core.schedule.ir import AHEAD, RECVS, Kind, Op, Schedule

Link = tuple[int, bool]
"""Peer (a pipeline rank), and whether activations (or gradients) travel: each is first in, first out."""


class _Posted(NamedTuple):
    buffer: Tensor
    work: Any


class Links:
    """The links of one rank to the others of its pipeline. `edges[s]` is the shape of what enters stage s.

    `here` is this rank's pipeline rank, `peers` maps the others to the global rank with this rank's tensor coordinate;
    `groups` are `distributed.Groups.links`; messages to the global rank r are `delay(r)` seconds late.
    """

    def __init__(
        self,
        schedule: Schedule,
        here: int,
        peers: Mapping[int, int],
        groups: Mapping[tuple[bool, bool], Group],
        edges: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        device: Device,
        delay: Callable[[int], float] = lambda rank: 0.0,
    ) -> None:
        self._here, self._peers, self._groups, self._edges = here, peers, groups, edges
        self._dtype, self._device = dtype, device.torch
        self._proves = receipts(schedule, here)
        self._expected: dict[Link, list[Op]] = {}
        for op in schedule.programs[here]:
            if op.kind in RECVS:
                self._expected.setdefault(_link(op), []).append(op)
        self._left: dict[Link, deque[Op]] = {}
        self._posted: dict[Link, deque[_Posted]] = {}
        self._sent: dict[Key, tuple[Any, Tensor]] = {}
        self._slow = {to: SlowLink(late) for to, rank in peers.items() if (late := delay(rank))}

    def begin_step(self) -> None:
        """Post the first receives of the step."""
        self._left = {link: deque(ops) for link, ops in self._expected.items()}
        self._posted = {link: deque() for link in self._expected}
        for link in self._expected:
            for _ in range(AHEAD):
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

    def send(self, op: Op, tensor: Tensor) -> None:
        """Start a SEND operation."""
        tensor = tensor.contiguous()
        group = self._groups[op.peer > self._here, op.kind is Kind.SEND_ACT]
        send = partial(dist.isend, tensor, self._peers[op.peer], group=group)
        slow = self._slow.get(op.peer)
        self._sent[key(op)] = (slow.isend(send) if slow else send(), tensor)

    def end_step(self) -> None:
        """Wait until every send has arrived."""
        for sent in list(self._sent):
            self._release(sent)

    def _release(self, sent: Key) -> None:
        work, _ = self._sent.pop(sent)
        work.wait()

    def _post(self, link: Link) -> None:
        if not self._left[link]:
            return
        op, (peer, activations) = self._left[link].popleft(), link
        shape = self._edges[op.stage if activations else op.stage + 1]
        buffer = torch.empty(shape, dtype=self._dtype, device=self._device)
        work = dist.irecv(buffer, self._peers[peer], group=self._groups[peer < self._here, activations])
        self._posted[link].append(_Posted(buffer, work))


def _link(op: Op) -> Link:
    return op.peer, op.kind in (Kind.SEND_ACT, Kind.RECV_ACT)
