"""Devices and clusters: rates in bytes and FLOPs a second, memory in bytes, and a catalogue of known ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parallel_core.analysis.quantities import bound_text
from parallel_core.plan.cluster.plans import Bools, Floats
from parallel_core.plan.cluster.problems import Problems
from parallel_core.plan.cluster.store import rows, table
from parallel_core.plan.room import FRAMEWORK

GIB = 1 << 30
MOST_DEVICES = 100_000
"""Most devices of a plan: beyond, the grid of layouts grows without new insight."""


@dataclass(frozen=True, slots=True)
class Device:
    """Dense peaks in FLOP/s: `half` of bf16 or fp16 tensor cores, `single` of fp32 matrix products, which are not
    rounded to TF32 (`engine.device.disable_tf32`). `memory` in bytes as marketed, its `bandwidth` in B/s. `units`:
    streaming multiprocessors."""

    name: str
    memory: float
    bandwidth: float
    half: float
    single: float
    units: int
    pcie: float = 31.5e9
    """B/s to the host, one way."""
    bf16: bool = True
    """Whether its 16 bits may be bf16: since Ampere."""
    unverified: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """`devices` devices in hosts of `per_host`. `link`: B/s of one device inside its host, one way; `network`: B/s of
    one device's share of its host's network, one way; `reserved`: bytes of a device that the framework needs."""

    name: str
    device: Device
    devices: int
    per_host: int
    link: float
    network: float
    reserved: float = float(FRAMEWORK["cuda"])
    host_memory: float = 1024.0 * GIB
    host_bandwidth: float = 200e9
    source: str = ""

    @property
    def capacity(self) -> float:
        """Bytes of a device available to a plan."""
        return self.device.memory - self.reserved

    def between_hosts(self, stage: Floats, other: Floats, wide: Floats) -> Bools:
        """Whether a rank of the pipeline rank `stage` has its peer in `other` on another host, if each has `wide`
        consecutive devices: then the end of a host lies after the first device of one and before the last of the
        other."""
        first, last = np.minimum(stage, other) * wide, (np.maximum(stage, other) + 1) * wide - 1
        return (stage != other) & (first // self.per_host != last // self.per_host)

    def hops_between_hosts(self, wide: Floats, stages: Floats) -> Floats:
        """Of the stages - 1 hops of pipelines with `wide` consecutive devices a stage, those `between_hosts`."""
        widths, hops = np.unique(wide), np.arange(np.max(stages, initial=1.0) - 1)
        far = np.cumsum(self.between_hosts(hops, hops + 1, widths[:, None]), axis=1, dtype=np.float64)
        found = np.pad(far, ((0, 0), (1, 0)))[np.searchsorted(widths, wide), np.asarray(stages, np.int64) - 1]
        return np.asarray(found)

    def fewest_in_host(self, ranks: Floats, stride: Floats, devices: Floats) -> Floats:
        """Fewest ranks of a group that share a host, of all groups of `ranks`, `stride` devices apart, of plans with
        `devices` devices; `ranks` where every group is inside a host.

        Groups fill blocks of ranks x stride devices. Unless a block fills a part of a host, some block has a host end
        after its first gcd(block, host) devices, if the plan fills its hosts."""
        first = np.gcd((ranks * stride).astype(np.int64), self.per_host)
        return np.where(devices <= self.per_host, ranks, np.maximum(first // stride, 1.0))

    def problems(self) -> dict[str, str]:
        """`{field: message}` for impossible values."""
        found = Problems()
        found.whole("devices", self.devices, 1, MOST_DEVICES)
        found.whole("per_host", self.per_host, 1, 1024)
        found.number("memory", self.device.memory / GIB, 0, 4096, " GiB")
        found.number("bandwidth", self.device.bandwidth / 1e9, 0, 1e6, " GB/s")
        found.number("half", self.device.half / 1e12, 0, 1e6, " TFLOP/s")
        found.number("link", self.link / 1e9, 0, 1e5, " GB/s")
        found.number("network", self.network / 1e9, 0, 1e5, " GB/s")
        if not 0 <= self.reserved < self.device.memory and "memory" not in found.messages:
            most = bound_text(self.device.memory / GIB)
            found.add("reserved", f"Must be at least 0 and less than the memory, {most} GiB.")
        if not found.messages and self.devices > self.per_host and self.devices % self.per_host:
            down, up = self.devices // self.per_host * self.per_host, -(-self.devices // self.per_host) * self.per_host
            found.add("devices", f"{self.devices} devices do not fill hosts of {self.per_host}; try {down} or {up}.")
        return found.messages


@lru_cache(maxsize=1)
def devices() -> dict[str, Device]:
    """The catalogue by name; dense rates as the makers publish them (`data/hardware.json`)."""
    return {
        row["name"]: Device(
            row["name"],
            row["memory_GiB"] * GIB,
            row["bandwidth_GBps"] * 1e9,
            row["half_tflops"] * 1e12,
            row["single_tflops"] * 1e12,
            row["units"],
            row["pcie_GBps"] * 1e9,
            row["bf16"],
            tuple(row["unverified"]),
            row["source"],
        )
        for row in rows("hardware")
    }


@lru_cache(maxsize=1)
def clusters() -> dict[str, Cluster]:
    """Cluster presets by key."""
    return {
        row["key"]: Cluster(
            row["name"],
            devices()[row["device"]],
            row["devices"],
            row["per_host"],
            row["link_GBps"] * 1e9,
            row["network_GBps"] * 1e9,
            source=row["source"],
        )
        for row in table("hardware")["clusters"]
    }
