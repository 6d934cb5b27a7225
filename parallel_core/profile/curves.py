"""Curves of measured seconds over sizes, and the links between devices and hosts, which consist of such curves."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from parallel_core import limits
from parallel_core.rules import rule_error
from parallel_core.spec import DeviceKind

What = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Size = Annotated[float, Field(ge=0, le=1e15)]
BULK = 16
"""The rate of a link is measured between a sixteenth of the largest size and the largest size."""
HostName = Annotated[str, Field(max_length=200)]


class Value(BaseModel):
    """Base of the parts of a table: finite numbers, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Curve(Value):
    """Seconds measured at ascending `sizes` (bytes, elements or samples); linear between and beyond them."""

    sizes: Annotated[tuple[Size, ...], Field(min_length=1, max_length=64)]
    seconds: tuple[Seconds, ...]

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if len(self.seconds) != len(self.sizes):
            raise rule_error(("seconds",), f"{len(self.sizes)} sizes need as many seconds, got {len(self.seconds)}.")
        if any(b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            raise rule_error(("sizes",), "sizes must rise.")
        return self

    def at(self, size: float) -> float:
        """Returns the seconds at `size`: linear between points, constant below the first, and beyond the last one along
        the last segment, never falling."""
        sizes, seconds = self.sizes, self.seconds
        if len(sizes) == 1 or size <= sizes[-1]:
            return float(np.interp(size, sizes, seconds))
        slope = max(0.0, seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        return float(seconds[-1] + slope * (size - sizes[-1]))

    def times(self, factor: float) -> Curve:
        """Returns the curve with all seconds multiplied by `factor`."""
        return Curve(sizes=self.sizes, seconds=tuple(factor * value for value in self.seconds))

    @cached_property
    def line(self) -> tuple[float, float]:
        """(alpha, beta): latency in seconds, from the smallest size, and seconds per byte, from the largest sizes.

        A line fitted through all points would give neither: buffers and burst allowances let small messages pass
        faster than the link.
        """
        smallest, largest = self.sizes[0], self.sizes[-1]
        low = max((size for size in self.sizes if size <= largest / BULK), default=smallest)
        if low == largest:
            return self.seconds[0], 0.0
        beta = max(0.0, self.at(largest) - self.at(low)) / (largest - low)
        return max(0.0, self.seconds[0] - beta * smallest), beta


class Link(Value):
    """One kind of message among `ranks` ranks, on `hosts` hosts in equal numbers.

    Sends among more than two ranks are simultaneous, each between one pair. `work`: seconds of the sender's (or
    receiver's) own device that a point-to-point message takes in addition to its transfer.
    """

    what: What
    ranks: Annotated[int, Field(ge=2, le=limits.MAX_DEGREE)]
    hosts: Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)] = 1
    time: Curve
    spread: tuple[Seconds, ...] = ()
    work: Curve | None = None

    def collective(self, ranks: int, size: float) -> tuple[float, float]:
        """(seconds, seconds of these beyond latency) of this collective of `size` bytes on a ring of `ranks`.

        Each rank takes part in n - 1 turns (twice that in an all-reduce), each of which moves 1/n of the bytes
        (Patarasuk and Yuan 2009), so a timing with another number of ranks is scaled.
        """
        seconds = self.time.at(size)
        latency = min(self.time.seconds[0], seconds)
        turns = (ranks - 1) / (self.ranks - 1)
        moving = (seconds - latency) * turns * self.ranks / ranks
        return latency * turns + moving, moving

    def arrival(self, size: float, each: float) -> float:
        """Returns the seconds from the start of a send until the waiting receiver has the tensor.

        `each`: seconds for which the message keeps sender and receiver busy. Within a host the sender copies it into
        memory and then the receiver out of it: in a step, between layers, this takes longer than `time`, which is
        measured with consecutive messages.
        """
        return max(self.time.at(size), 2 * each) if self.hosts == 1 else self.time.at(size)


class LinksBetween(Value):
    """Measured links between two hosts, and those within one of them that use the same transport: in a run over several
    hosts, the messages of a pipeline that spans them."""

    hosts: tuple[HostName, HostName]
    device: DeviceKind
    software: Annotated[str, Field(max_length=100)]
    recorded: float = 0.0
    """When it was measured, in unix seconds."""
    links: Annotated[tuple[Link, ...], Field(min_length=1, max_length=1000)]

    def link(self, what: What, ranks: int, hosts: int = 2) -> Link | None:
        """Returns the link among the nearest number of ranks; None where that kind was not measured."""
        able = [link for link in self.links if (link.what, link.hosts) == (what, hosts)]
        return min(able, key=lambda link: (abs(link.ranks - ranks), link.ranks), default=None)
