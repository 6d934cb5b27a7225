"""Costs of a run's operations where ranks share hosts, and network links between hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate.costs import Costs
from parallel_core.simulate.link_contention import Flow

Sent = tuple[int, int, Kind, int]
"""(pipeline rank, stage, kind, receiving pipeline rank) of a SEND."""
Joined = tuple[int, int, Kind]
"""(pipeline rank, stage, kind) of an operation that contains collectives."""


@dataclass(frozen=True)
class HostCosts:
    """Costs of operations, in ns.

    - `compute`: work, as in Costs; that of a RECV counts only if the tensor arrived before the rank reached it
    - `waits[stage, kind]`: time without work after it
    - `messages[stage, kind]`: (ns until the tensor has arrived, bytes) of a SEND
    - `flows`: SENDs between hosts, which arrive when the flow is done
    - `collectives`: collectives between hosts, one after the other; their time when alone is part of `waits`. Without
      the gather of the norm: nothing else is on the network while all ranks wait in it.
    """

    compute: Costs
    waits: Mapping[tuple[int, Kind], int] = field(default_factory=lambda: MappingProxyType({}))
    messages: Mapping[tuple[int, Kind], tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    flows: Mapping[Sent, Flow] = field(default_factory=lambda: MappingProxyType({}))
    collectives: Mapping[Joined, tuple[Flow, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def without_work(self, op: Op, rank: int) -> tuple[float, tuple[Flow, ...]]:
        """(ns that pass in any case, flows to complete first) after the work of an operation."""
        if op.partner is None and not self.collectives:
            return self.waits.get((op.stage, op.kind), 0), ()
        parts = [(part.stage, part.kind) for part in op.parts()]
        flows = tuple(one for part in parts for one in self.collectives.get((rank, *part), ()))
        alone = sum(one.transfer for one in flows)
        return max(0.0, sum(self.waits.get(part, 0) for part in parts) - alone), flows

    def bytes_of(self, op: Op) -> int:
        """Bytes of a SEND or RECV."""
        back = {Kind.RECV_ACT: (op.stage - 1, Kind.SEND_ACT), Kind.RECV_GRAD: (op.stage + 1, Kind.SEND_GRAD)}
        return self.messages.get(back.get(op.kind, (op.stage, op.kind)), (0, 0))[1]

    def latency(self, op: Op) -> int:
        """Nanoseconds from the start of a SEND until its tensor has arrived."""
        known = self.messages.get((op.stage, op.kind))
        return known[0] if known else self.compute.latency(op)
