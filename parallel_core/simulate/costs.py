"""Costs of operations for `simulate`: integer nanoseconds for each (stage, kind), and the time of a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from parallel_core.schedule.ir import Kind, Op


class Prices(Protocol):
    """The interface of a cost table for `simulate`."""

    @property
    def norm(self) -> bool:
        """Whether all ranks wait for each other before the optimizer, as for a global gradient norm."""

    def meeting(self, pipeline_rank: int) -> int:
        """Nanoseconds of the norm's own collective on the rank, once all ranks have reached it."""

    @property
    def message_bytes(self) -> int:
        """Bytes of every message."""

    def of(self, op: Op) -> int:
        """Nanoseconds that `op` keeps its rank busy, after all waiting."""

    def latency(self, op: Op) -> int:
        """Nanoseconds from the start of the SEND `op` until its tensor has arrived, if its way is free then."""

    def turn(self, op: Op) -> int:
        """Nanoseconds for which the SEND `op` keeps the next one from its rank to the same rank from going."""

    def begin(self, pipeline_rank: int) -> int:
        """Time at which the rank reaches its first operation."""


@dataclass(frozen=True, slots=True)
class Costs:
    """`compute[stage, kind]`: ns of F, B, W, BW, R, PAIR, ALLREDUCE and OPT_STEP; missing entries are 0, except that BW
    defaults to B + W, and PAIR to its forward and backward one after the other.

    `message`: ns from a SEND to the arrival of its tensor of `message_bytes`, equal on every link; messages do not slow
    each other. `norm` adds the barrier of a global gradient norm before the optimizer: no rank updates until all ranks
    have reached it and `norm_ns` have passed.
    """

    compute: Mapping[tuple[int, Kind], int] = field(default_factory=lambda: MappingProxyType({}))
    message: int = 0
    message_bytes: int = 0
    norm: bool = False
    norm_ns: int = 0

    @classmethod
    def uniform(cls, stages: int, f: int, b: int, w: int, message: int = 0, norm: bool = False) -> Costs:
        """Equal stages: forward `f`, backward `b` for the input and `w` for the weights, in ns."""
        each = {Kind.F: f, Kind.B: b, Kind.W: w}
        return cls({(s, kind): ns for s in range(stages) for kind, ns in each.items()}, message, norm=norm)

    def latency(self, op: Op) -> int:
        return self.message

    def turn(self, op: Op) -> int:
        return 0

    def begin(self, pipeline_rank: int) -> int:
        return 0

    def meeting(self, pipeline_rank: int) -> int:
        return self.norm_ns

    def of(self, op: Op) -> int:
        given = self.compute.get((op.stage, op.kind))
        if given is not None:
            return given
        if op.kind is Kind.BW:
            return self.compute.get((op.stage, Kind.B), 0) + self.compute.get((op.stage, Kind.W), 0)
        return sum(self.of(part) for part in op.parts()) if op.kind is Kind.PAIR else 0
