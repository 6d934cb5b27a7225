"""Point-to-point messages between stages: receives are posted ahead, sends are not waited for.

At a RECV operation of the program the rank waits; the receive itself is posted up to AHEAD messages earlier, so that
the data moves while the rank computes. A send returns at once; its tensor is kept until it is known to have arrived
(gloo's send is a rendezvous, and dropping a Work may drop its buffer).
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
from parallel_core.engine.host_links import ChannelLayout, HostLinks
from parallel_core.engine.injected import SlowLink
from parallel_core.engine.precision import DTYPES
from parallel_core.layout import Layout
from parallel_core.plan.traffic import mark_bytes
from parallel_core.plan.units import boundary_shapes
from parallel_core.schedule.ir import AHEAD, RECVS, Kind, Op
from parallel_core.schedule.send_completion import Key, key
from parallel_core.schedule.ways import LinkKind
from parallel_core.spec import RunSpec

Link = tuple[int, bool]
"""(peer's pipeline rank, activations rather than gradients?): the messages of each link are first in, first out."""


class Traffic(NamedTuple):
    """The messages of a rank's program, or of a part of it."""

    receives: dict[Link, list[Op]]
    proves: dict[Key, list[Key]]
    """Receive -> sends that are known to have arrived once it has (`send_completion.receipts`)."""

    @classmethod
    def of(cls, program: Sequence[Op], proves: dict[Key, list[Key]]) -> Traffic:
        """Collects the receives of `program` by link."""
        receives: dict[Link, list[Op]] = {}
        for op in program:
            if op.kind in RECVS:
                receives.setdefault(_link(op), []).append(op)
        return cls(receives, proves)


class _Posted(NamedTuple):
    buffer: Tensor
    work: Any


class Peer(NamedTuple):
    """The global ranks of another pipeline rank: the one that sends to this rank, and those that this rank sends to."""

    sender: int
    receivers: tuple[int, ...]


class Messages(NamedTuple):
    """What the messages between stages are, the same on every rank."""

    edges: tuple[tuple[int, ...], ...]
    """`edges[s]`: the shape of the input of stage s, and of its gradient."""
    dtype: torch.dtype
    mark: int
    """Number of elements appended to a gradient in its message (`scaled_gradients`), which is then sent flat."""
    most: int
    """Upper bound of the messages that a rank sends to another in a step, all of which it may send before any is
    received."""

    @classmethod
    def of(cls, spec: RunSpec, layout: Layout) -> Messages:
        shapes, dtype = boundary_shapes(spec), DTYPES[spec.train.precision]
        edges = tuple(shapes[units[0]] for units in layout.stage_units)
        return cls(edges, dtype, mark_bytes(spec) // dtype.itemsize, spec.parallel.per_step * layout.stages)

    @property
    def bytes(self) -> int:
        """Bytes of the largest one."""
        return (max((math.prod(edge) for edge in self.edges), default=0) + self.mark) * self.dtype.itemsize


class Links:
    """The links of one rank to the others of its pipeline.

    `here` is this rank's pipeline rank; `peers` maps the other pipeline ranks to their global ranks (`Layout.sender`,
    `receivers`); `groups` are `distributed.Groups.links`; messages to the global rank r are delayed by `delay(r)`
    seconds.
    """

    def __init__(
        self,
        here: int,
        peers: Mapping[int, Peer],
        groups: Mapping[LinkKind, LinkGroup],
        messages: Messages,
        device: Device,
        delay: Callable[[int], float] = lambda rank: 0.0,
    ) -> None:
        self._here, self._peers, self._groups = here, peers, groups
        self._messages, self._device = messages, device.torch
        self._proves: Mapping[Key, Sequence[Key]] = {}
        self._unposted: dict[Link, deque[Op]] = {}
        self._posted: dict[Link, deque[_Posted]] = {}
        self._sent: dict[Key, tuple[list[Any], Tensor]] = {}
        for group in groups.values():
            if isinstance(group, HostLinks):
                group.layout = ChannelLayout.of(messages.bytes, messages.most)
        receivers = [rank for peer in peers.values() for rank in peer.receivers]
        self._slow = {rank: SlowLink(late) for rank in receivers if (late := delay(rank))}

    def edge(self, stage: int) -> tuple[int, ...]:
        """Returns the shape of the input of a stage, which is also that of its gradient."""
        return self._messages.edges[stage]

    def begin_step(self, traffic: Traffic) -> None:
        """Sets which sends the receives of this step prove to have arrived."""
        self._proves = traffic.proves

    def expect(self, traffic: Traffic) -> None:
        """Queues these receives after those expected so far, and posts the first ones."""
        for link, ops in traffic.receives.items():
            self._unposted.setdefault(link, deque()).extend(ops)
            posted = self._posted.setdefault(link, deque())
            for _ in range(AHEAD - len(posted)):
                self._post(link)

    def receive(self, op: Op) -> Tensor:
        """Returns the tensor of a RECV operation; waits for it."""
        link = _link(op)
        buffer, work = self._posted[link].popleft()
        self._post(link)
        work.wait()
        for sent in self._proves.get(key(op), ()):
            self._release(sent)
        return buffer

    def send(self, op: Op, tensor: Tensor) -> int:
        """Starts a SEND operation and returns the bytes sent. Where the tensor-parallel groups differ in width, some
        ranks of the wider one have no receiver."""
        tensor = tensor.contiguous()
        group = self._groups[op.peer > self._here, op.kind is Kind.SEND_ACT]
        receivers = self._peers[op.peer].receivers
        works = [self._start(partial(isend, tensor, rank, group), rank) for rank in receivers]
        if works:
            self._sent[key(op)] = (works, tensor)
        return len(works) * tensor.nbytes

    def _start(self, send: Callable[[], Any], rank: int) -> Any:
        slow = self._slow.get(rank)
        return slow.isend(send) if slow else send()

    def end_step(self) -> None:
        """Waits until every send has arrived."""
        self.wait_for_all_but(0)

    def wait_for_all_but(self, last: int) -> None:
        """Waits until every send but the `last` ones has arrived."""
        for sent in list(self._sent)[: max(len(self._sent) - last, 0)]:
            self._release(sent)

    def renumber(self, by: int) -> None:
        """Ends a step without a flush: micro-batch ids of pending sends count from the next step."""
        self._sent = {(kind, stage, i - by): sent for (kind, stage, i), sent in self._sent.items()}

    def _release(self, sent: Key) -> None:
        works, _ = self._sent.pop(sent, ((), None))
        for work in works:
            work.wait()

    def _post(self, link: Link) -> None:
        if not self._unposted[link]:
            return
        op, (peer, activations) = self._unposted[link].popleft(), link
        shape, mark = self.edge(op.stage if activations else op.stage + 1), self._messages.mark
        if mark and not activations:
            shape = (math.prod(shape) + mark,)
        buffer = torch.empty(shape, dtype=self._messages.dtype, device=self._device)
        work = irecv(buffer, self._peers[peer].sender, self._groups[peer < self._here, activations])
        self._posted[link].append(_Posted(buffer, work))


def _link(op: Op) -> Link:
    return op.peer, op.kind in (Kind.SEND_ACT, Kind.RECV_ACT)
