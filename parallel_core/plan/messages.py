"""Elements that a rank holds for its messages at each operation of its program.

Receives are posted AHEAD of need, each with its buffer; a sent tensor is kept until a message from the same peer
acknowledges it (`schedule.send_completion`). Between two stages of one rank a tensor is handed over in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from parallel_core.schedule.ir import AHEAD, RECVS, SENDS, Kind, Op, Schedule
from parallel_core.schedule.send_completion import Key, key, receipts

Link = tuple[int, bool]
"""Peer, and whether activations are received from it (else gradients)."""
_BACKWARDS = (Kind.B, Kind.BW)


class HeldMessages:
    """Messages held by rank `here` of a schedule that includes its messages. `edges[s]`: elements that enter stage s.

    A sent output counts only if its stage is in `again`, i.e. recomputes it; otherwise it ends a graph that its stage
    keeps anyway. Stages in `unfed_stages` receive nothing from this rank (`Layout.unfed_stages`).
    """

    def __init__(
        self,
        made: Schedule,
        here: int,
        edges: Mapping[int, int],
        again: frozenset[int],
        unfed_stages: frozenset[int] = frozenset(),
    ) -> None:
        self._program, self._edges, self._again, self._unfed = made.programs[here], edges, again, unfed_stages
        self._stages = {op.stage for op in self._program if op.kind not in RECVS | SENDS}
        self._proves = receipts(made, here)
        self._left: dict[Link, deque[int]] = {}
        self._posted: dict[Link, deque[int]] = {}
        self._sent: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}
        """Inputs that have arrived, or were made by another stage of the rank, and are not used yet."""
        self._total = 0
        """Elements of all that is posted, sent or waiting."""

    def walk(self) -> Iterator[tuple[Op, int]]:
        """Each compute operation with the elements held while it runs, its own input and output not included."""
        for op in self._program:
            if op.kind in RECVS:
                self._left.setdefault(_link(op), deque()).append(self._size(op))
        for link in self._left:
            self._posted[link] = deque()
            for _ in range(AHEAD):
                self._post(link)
        for op in self._program:
            if op.kind in RECVS:
                self._receive(op)
            elif op.kind in SENDS:
                self._send(op)
            for part in op.parts():
                if part.kind in (Kind.F, Kind.W, *_BACKWARDS):
                    yield part, self._used(part)
                    self._hand_on(part)

    def _used(self, part: Op) -> int:
        """Removes the operation's input from the waiting ones; returns the elements still held."""
        self._total -= self._waiting.pop(_input(part), 0)
        return self._total

    def _hand_on(self, part: Op) -> None:
        """Hands the operation's output to another stage of the same rank, if that is the next one."""
        forward = part.kind is Kind.F
        to = part.stage + (1 if forward else -1)
        if part.kind is Kind.W or to not in self._stages:
            return
        kind = Kind.RECV_ACT if forward else Kind.RECV_GRAD
        if not forward or part.stage in self._again:
            self._hold(self._waiting, (kind, to, part.micro_batch), self._edges[max(to, part.stage)])

    def _receive(self, op: Op) -> None:
        link = _link(op)
        size = self._posted[link].popleft()
        self._total -= size
        self._post(link)
        if op.kind is Kind.RECV_GRAD:  # a received activation counts as its stage's from here on
            self._hold(self._waiting, key(op), size)
        for sent in self._proves.get(key(op), ()):
            self._total -= self._sent.pop(sent, 0)

    def _send(self, op: Op) -> None:
        back = op.kind is Kind.SEND_GRAD
        if op.stage + (-1 if back else 1) not in self._unfed and (back or op.stage in self._again):
            self._hold(self._sent, key(op), self._size(op))

    def _hold(self, held: dict[Key, int], name: Key, size: int) -> None:
        held[name] = size
        self._total += size

    def _post(self, link: Link) -> None:
        if self._left[link]:
            self._posted[link].append(self._left[link].popleft())
            self._total += self._posted[link][-1]

    def _size(self, op: Op) -> int:
        """Elements of a message: activations enter the receiving stage, gradients have the size of their
        activations."""
        inward = op.kind in (Kind.RECV_ACT, Kind.SEND_GRAD)
        return self._edges[op.stage if inward else op.stage + 1]


def _input(part: Op) -> Key:
    return (Kind.RECV_ACT if part.kind is Kind.F else Kind.RECV_GRAD), part.stage, part.micro_batch


def _link(op: Op) -> Link:
    return op.peer, op.kind is Kind.RECV_ACT
