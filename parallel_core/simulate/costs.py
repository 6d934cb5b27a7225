"""What an operation costs, for `simulate`: integer nanoseconds for each (stage, kind), and the time of a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from parallel_core.schedule.ir import Kind, Op


class Prices(Protocol):
    """What `simulate` asks of a cost table."""

    @property
    def norm(self) -> bool:
        """All ranks wait for each other in front of the optimizer, as they do for a global gradient norm."""

    def meeting(self, pipeline_rank: int) -> int:
        """Nanoseconds that the norm's own collective takes the rank, once all have come."""

    @property
    def message_bytes(self) -> int:
        """Of every message."""

    def of(self, op: Op) -> int:
        """Nanoseconds that `op` keeps its rank busy, once nothing is waited for any more."""

    def latency(self, op: Op) -> int:
        """Nanoseconds from the begin of the SEND `op` until its tensor is at the other end."""

    def begin(self, pipeline_rank: int) -> int:
        """When the rank comes to its first operation."""


@dataclass(frozen=True, slots=True)
class Costs:
    """`compute[stage, kind]` in ns of F, B, W, BW, R, PAIR, ALLREDUCE and OPT_STEP; what is missing takes no time, but

    * BW defaults to B + W, and PAIR to its forward and backward one after the other.

    `message` is the time from a SEND to the arrival of its tensor of `message_bytes`, equal on every link; messages do
    not slow each other. `norm` adds the barrier of a global gradient norm in front of the optimizer: no rank steps
    before all ranks have come to it, and `norm_ns` more have passed.
    """

    compute: Mapping[tuple[int, Kind], int] = field(default_factory=lambda: MappingProxyType({}))
    message: int = 0
    message_bytes: int = 0
    norm: bool = False
    norm_ns: int = 0

    @classmethod
    def uniform(cls, stages: int, f: int, b: int, w: int, message: int = 0, norm: bool = False) -> Costs:
        """All stages alike: forward `f`, backward `b` for the input and `w` for the weights, in ns."""
        each = {Kind.F: f, Kind.B: b, Kind.W: w}
        return cls({(s, kind): ns for s in range(stages) for kind, ns in each.items()}, message, norm=norm)

    def latency(self, op: Op) -> int:
        return self.message

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
