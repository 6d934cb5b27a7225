"""What the operations of a run cost where its ranks share hosts, and lines between hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate.costs import Costs
from parallel_core.simulate.link_contention import Passage

Sent = tuple[int, int, Kind, int]
"""(pipeline rank, stage, kind, the rank at the other end) of a SEND."""
Joined = tuple[int, int, Kind]
"""(pipeline rank, stage, kind) of an operation with collectives in it."""


@dataclass(frozen=True)
class HostCosts:
    """`compute` as in Costs, in ns of work; `waits[stage, kind]` is time that passes behind it without work.

    `messages[stage, kind]` of a SEND is (ns until its tensor is there, bytes). What `compute` says of a RECV counts
    where the tensor came before the rank did, alone. Those with a passage go between hosts, and are there when it has
    brought them. `collectives` are those between hosts, one after the other: alone they take so much of the `waits`.
    (The gather of the norm is not among them: nothing else is on its way while all ranks are in it.)
    """

    compute: Costs
    waits: Mapping[tuple[int, Kind], int] = field(default_factory=lambda: MappingProxyType({}))
    messages: Mapping[tuple[int, Kind], tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    passages: Mapping[Sent, Passage] = field(default_factory=lambda: MappingProxyType({}))
    collectives: Mapping[Joined, tuple[Passage, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def without_work(self, op: Op, rank: int) -> tuple[float, tuple[Passage, ...]]:
        """(ns that pass in any case, what has to come through first) behind the work of an operation."""
        if op.partner is None and not self.collectives:
            return self.waits.get((op.stage, op.kind), 0), ()
        parts = [(part.stage, part.kind) for part in op.parts()]
        passages = tuple(one for part in parts for one in self.collectives.get((rank, *part), ()))
        alone = sum(one.transfer for one in passages)
        return max(0.0, sum(self.waits.get(part, 0) for part in parts) - alone), passages

    def bytes_of(self, op: Op) -> int:
        """What a SEND or RECV moves."""
        back = {Kind.RECV_ACT: (op.stage - 1, Kind.SEND_ACT), Kind.RECV_GRAD: (op.stage + 1, Kind.SEND_GRAD)}
        return self.messages.get(back.get(op.kind, (op.stage, op.kind)), (0, 0))[1]

    def latency(self, op: Op) -> int:
        """Nanoseconds from the begin of a SEND until its tensor is at the other end."""
        known = self.messages.get((op.stage, op.kind))
        return known[0] if known else self.compute.latency(op)
