"""CostTable: measured seconds and bytes of a model's layers on a device, and of messages between devices of a host.

Plain data, stored as JSON: measured once for a device, software version and model, and used by `simulate.predict`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from parallel_core import limits
from parallel_core.model_spec import ModelSpec
from parallel_core.observe.records import REFERENCE_UNCOUNTED
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut
from parallel_core.profile.curves import Curve, Link, Seconds, Size, Value, What
from parallel_core.rules import field_errors, rule_error
from parallel_core.spec import DeviceKind, Precision

Part = Literal["forward", "backward", "input", "weights"]
PARTS: tuple[Part, ...] = ("forward", "backward", "input", "weights")
"""What is measured of a layer: F, BW, and the B and W that BW can be split into."""
Fixed = Literal[
    "data", "zero", "optimizer", "scaled_optimizer", "norm", "squares", "reduce", "report", "operation", "message"
]  # fmt: skip
"""`norm`: the sums of squares of all gradients (`squares`) and their gathering with the totals of a step."""

Level = Literal[2, 3]
MOST_JITTER = 10.0
Crowding = Annotated[float, Field(ge=1, le=100)]
Count = Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)]
Spell = Annotated[tuple[Annotated[float, Field(gt=0, le=1000)], ...], Field(min_length=1, max_length=limits.MAX_DEGREE)]


class CostTableError(ValueError):
    """A file is not a valid cost table; the message names the field."""


class Layers(Value):
    """Times of all layers of the model, one after the other on one device, under one condition.

    `seconds[part]` and `spread[part]` (half the distance from the 10th to the 90th percentile) have one entry per
    layer; `whole[part]` is the time without stopping between layers. `messages`: bytes of each tensor-parallel
    collective in a layer's forward and backward, whose time is not included; `whats`: their kinds, where they are not
    all all-reduces.
    """

    tp: Count = 1
    tensor_split: Cut = "pairs"
    recompute: Recompute = "none"
    samples: Annotated[int, Field(ge=1, le=limits.MAX_GLOBAL_BATCH)]
    busy: Count = 1
    """Number of devices of the host that were busy at the same time."""
    joined: bool = False
    """Measured in a tensor-parallel group that communicated: seconds include its collectives; `messages` is empty."""
    seconds: dict[Part, tuple[Seconds, ...]]
    spread: dict[Part, tuple[Seconds, ...]]
    whole: dict[Part, Seconds]
    messages: dict[Literal["forward", "backward"], tuple[tuple[Size, ...], ...]] = {}
    whats: dict[Literal["forward", "backward"], tuple[tuple[What, ...], ...]] = {}
    jitter: Annotated[float, Field(ge=0, le=MOST_JITTER)] = 0.0
    """Spread of a whole forward and backward pass, relative to its median."""
    noise: Annotated[float, Field(ge=0, le=10)] = 0.0
    """q in seconds: a part that takes t on average varies between repeats with the variance q x t."""

    @property
    def key(self) -> tuple[int, str, int, bool, Cut]:
        """The condition of the row, for `CostTable.of`."""
        return self.tp, self.recompute, self.busy, self.joined, self.tensor_split

    def collectives(self, way: Literal["forward", "backward"], unit: int) -> list[tuple[What, float]]:
        """Returns (kind, bytes of the whole tensor) of each collective of a layer."""
        sizes = self.messages[way][unit] if way in self.messages else ()
        if way not in self.whats:
            return [("all_reduce", size) for size in sizes]
        return list(zip(self.whats[way][unit], sizes, strict=True))

    def times(self, factor: float) -> Layers:
        """Returns the row with all times multiplied by `factor`."""
        longer = {
            name: {part: tuple(factor * value for value in values) for part, values in getattr(self, name).items()}
            for name in ("seconds", "spread")
        }
        whole = {part: factor * value for part, value in self.whole.items()}
        return self.model_copy(update={**longer, "whole": whole, "noise": factor * self.noise})

    def stop(self, part: Part) -> float:
        """Returns the seconds that each stop between two layers adds; negative where noise exceeds it."""
        own = self.seconds[part]
        return (sum(own) - self.whole[part]) / (len(own) - 1) if len(own) > 1 else 0.0


class FullySharded(Value):
    """Seconds that torch's `fully_shard` over `ranks` replicas adds to forward and backward of a micro-batch through
    all layers.

    They include gathers, gradient reduction, the copies into and out of both, and hooks. `work`: the share of them for
    which a rank's processor is busy; in the rest it waits, so that other ranks on the same device can run.
    """

    tp: Count = 1
    recompute: Recompute = "none"
    ranks: Annotated[int, Field(ge=2, le=limits.MAX_DEGREE)]
    forward: Seconds
    backward: Seconds
    work: Annotated[float, Field(ge=0, le=1)] = 1.0

    def busy(self, devices: int) -> float:
        """Share of the seconds, 0 .. 1, in which a device is at work: its ranks took turns where there were fewer
        `devices` than ranks."""
        return min(1.0, max(1.0, self.ranks / devices) * self.work)

    def times(self, factor: float, devices: int) -> FullySharded:
        """Returns the row with the work multiplied by `factor`, with all turns of it; what is waited stays."""
        longer = 1 + self.busy(devices) * (factor - 1)
        seconds = {"forward": longer * self.forward, "backward": longer * self.backward}
        return self.model_copy(update={**seconds, "work": min(1.0, factor * self.work / longer)})


class OwnShards(Value):
    """Processor seconds that this engine's ZeRO (stage `zero`) adds to forward and backward of a micro-batch of
    `samples` through all layers, without its messages: hooks, views, and memory that is allocated and freed."""

    zero: Level
    recompute: Recompute = "none"
    samples: Count = 1
    forward: Seconds
    backward: Seconds

    def times(self, factor: float) -> OwnShards:
        """Returns the row with both times multiplied by `factor`."""
        return self.model_copy(update={"forward": factor * self.forward, "backward": factor * self.backward})


class LayerBytes(Value):
    """Bytes of one layer: its parameters, and for `samples` samples what its forward saves, and its output
    (`boundary`)."""

    unit: Annotated[str, Field(max_length=100)]
    parameters: Size
    saved: Size
    boundary: Size


class CostTable(Value):
    """The costs of one model on one kind of device of one host, with one version of the software."""

    device: DeviceKind
    device_name: Annotated[str, Field(max_length=200)] = ""
    host: Annotated[str, Field(max_length=200)] = ""
    software: Annotated[str, Field(max_length=100)]
    model: ModelSpec
    precision: Precision
    deterministic: bool = False
    """Whether it is for runs with deterministic kernels (`request.other_kernels`)."""
    devices: Count
    """Number of devices that ranks were bound to; with more ranks than that, several share one."""
    recorded: float = 0.0
    """When it was measured, in unix seconds."""
    samples: int
    """Number of samples that `sizes` refer to."""
    sizes: tuple[LayerBytes, ...]
    layers: Annotated[tuple[Layers, ...], Field(min_length=1, max_length=1000)]
    links: Annotated[tuple[Link, ...], Field(max_length=1000)] = ()
    fully_sharded: Annotated[tuple[FullySharded, ...], Field(max_length=100)] = ()
    own_shards: Annotated[tuple[OwnShards, ...], Field(max_length=100)] = ()
    fixed: dict[Fixed, dict[int, Curve]] = {}
    """Costs of a step outside of its layers, by number of busy devices."""
    crowded: dict[int, Crowding] = {}
    """Tensor-parallel width -> slowdown of ranks that share a device, beyond taking turns (see `oversubscription`)."""

    reference: dict[int, Seconds] = {}
    """Number of busy devices -> processor seconds of the reference work (observe.reference) at the pace to which the
    times of layers and fixed costs were normalized; {} where it was not done."""
    reference_uncounted: Annotated[int, Field(ge=0, le=100)] = 1
    """Uncounted repeats of the reference work before the timed one; times with other numbers are not comparable."""
    leaves_out: bool = False
    """Whether the last product of a recomputed block was left out, as in runs; earlier versions computed it."""
    spells: Annotated[tuple[Spell, ...], Field(max_length=1000)] = ()
    """Slowdown of each device relative to the mean, for each sampling moment, by the reference work."""

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, told: Any) -> Any:
        """Drops `crowded` of tables of earlier versions, which has seconds without those of exclusive passes."""
        crowded = told.get("crowded") if isinstance(told, dict) else None
        if isinstance(crowded, dict) and any(isinstance(value, dict) for value in crowded.values()):
            return {**told, "crowded": {}}
        return told

    @model_validator(mode="after")
    def _complete(self) -> Self:
        units = self.model.units()
        if [row.unit for row in self.sizes] != units:
            raise rule_error(("sizes",), f"sizes must list the model's {len(units)} layers in order.")
        if len({len(spell) for spell in self.spells}) > 1:
            raise rule_error(("spells",), "every spell needs a number for each device that was profiled.")
        for i, row in enumerate(self.layers):
            for part in PARTS:
                if len(row.seconds.get(part, ())) != len(units) or part not in row.whole:
                    raise rule_error(
                        (f"layers.{i}.seconds.{part}",), f"needs one entry for each of {len(units)} layers."
                    )
        return self

    @classmethod
    def read(cls, path: Path) -> CostTable:
        """Reads the table from a file. Raises CostTableError where it is not valid."""
        try:
            return cls.parse(path.read_bytes(), f"{path} is ")
        except OSError as error:
            raise CostTableError(f"{path} cannot be read: {error.strerror}") from error

    @classmethod
    def parse(cls, text: str | bytes, said: str = "") -> CostTable:
        """Returns the table in this JSON. Raises CostTableError with a line per invalid field, after text `said`."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            wrong = [f"  {name}: {why}" for name, why in list(field_errors(error).items())[:5]]
            raise CostTableError("\n".join([f"{said}no cost table:", *wrong])) from error

    def dump(self) -> dict[str, Any]:
        """Returns the table as JSON-compatible values."""
        return self.model_dump(mode="json")

    @property
    def conditions(self) -> set[tuple[int, str, Cut]]:
        """(tp, recompute, tensor split) of all measured layers."""
        return {(row.tp, row.recompute, row.tensor_split) for row in self.layers}

    @property
    def busy(self) -> int:
        """Largest number of devices that were busy at the same time."""
        return max(row.busy for row in self.layers if not row.joined)

    def of(self, tp: int, recompute: str, busy: int, joined: bool = False, split: Cut = "pairs") -> list[Layers]:
        """Returns the rows of this condition by ascending samples."""
        key = tp, recompute, busy, joined, split if tp > 1 else "pairs"
        return sorted((row for row in self.layers if row.key == key), key=lambda row: row.samples)

    def link(self, what: What, ranks: int) -> Link | None:
        """Returns the link among the nearest number of ranks; None where that kind was not measured."""
        able = [link for link in self.links if link.what == what]
        return min(able, key=lambda link: (abs(link.ranks - ranks), link.ranks), default=None)

    def by_torch(self, tp: int, ranks: int, recompute: Recompute) -> FullySharded | None:
        """Returns what `fully_shard` adds under the nearest condition; None where it was not measured."""
        rows = self.fully_sharded
        near = [(row.recompute != recompute, abs(row.tp - tp), abs(row.ranks - ranks), i) for i, row in enumerate(rows)]
        return rows[min(near)[-1]] if near else None

    def by_us(self, zero: int, recompute: Recompute, samples: int) -> OwnShards | None:
        """Returns what this engine's ZeRO stage `zero` adds to a micro-batch of so many samples, between the numbers
        that were measured; None where it was not."""
        rows = [row for row in self.own_shards if row.zero == zero]
        how = min((row.recompute for row in rows), key=lambda known: known != recompute, default=recompute)
        same = sorted((row for row in rows if row.recompute == how), key=lambda row: row.samples)
        if not same:
            return None
        sizes = [row.samples for row in same]
        forward, backward = (
            float(np.interp(samples, sizes, times))
            for times in ([row.forward for row in same], [row.backward for row in same])
        )
        return same[0].model_copy(update={"forward": forward, "backward": backward})

    def crowding(self, tp: int) -> float:
        """Returns the slowdown of tensor-parallel groups of `tp` that share devices, beyond taking turns: that of the
        nearest measured width, 1 where none was measured."""
        return self.crowded[min(self.crowded, key=lambda known: abs(known - tp))] if self.crowded else 1.0

    def usual(self, together: int) -> float:
        """Returns the seconds of the reference work while `together` ranks of a host are busy; 0 where it was not done,
        or not in the way in which runs do it now."""
        if self.reference_uncounted != REFERENCE_UNCOUNTED:
            return 0.0
        busy = min(together, self.busy)
        return self.reference[min(self.reference, key=lambda known: abs(known - busy))] if self.reference else 0.0

    @property
    def noise(self) -> float:
        """`Layers.noise` in seconds, while all devices are busy."""
        return float(np.mean([row.noise for row in self.of(1, "none", self.busy)] or [0.0]))

    def overhead(self, name: Fixed, size: float = 0.0, busy: int = 1) -> float:
        """Returns the seconds of a fixed cost at `size`; 0 where it was not measured."""
        curves = self.fixed.get(name)
        if not curves:
            return 0.0
        return curves[min(curves, key=lambda known: abs(known - busy))].at(size)
