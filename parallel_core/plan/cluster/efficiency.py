"""The share of a device's and a link's peak that is reached: physical constants, the same for every plan and model.

A matrix product loses time with a short inner dimension (a tile's pipeline has to fill) and with its last wave of tiles
(multiprocessors finish together); all else is limited by memory bandwidth. Values, their sources and the published rows
they were fitted on are in `data/efficiency.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.plans import PRECISIONS, Bools, Floats, Plans
from parallel_core.plan.cluster.store import table

TILE = (128, 256)
"""Rows and columns of the output tile that one multiprocessor computes in a large half-precision product."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peak rates, overheads and latencies:

    - `matrix`: share of the peak that an infinitely long product reaches
    - `fill`: time a tile loses, in inner elements
    - `wave`: waves lost at the end of a product
    - `memory`, `link`, `network`: shares of the bandwidths
    - `beside`: slowdown of compute by an overlapped collective, as a share of the collective's time
    - `latency`, `network_latency`: seconds of a message inside a host, between hosts
    """

    matrix: float
    fill: float
    wave: float
    memory: float
    link: float
    network: float
    beside: float
    latency: float
    network_latency: float


@lru_cache(maxsize=1)
def fitted() -> Efficiency:
    """The planner's constants, from `data/efficiency.json`."""
    return Efficiency(**table("efficiency")["constants"])


@dataclass(frozen=True)
class Machine:
    """A cluster at the precision of each of the plans: seconds of products, of memory traffic and of messages."""

    cluster: Cluster
    efficiency: Efficiency
    plans: Plans

    def product(self, rows: Floats, columns: Floats, inner: Floats, count: Floats | float = 1.0) -> Floats:
        """Seconds of `count` products of (rows x inner) and (inner x columns): the longer of compute and memory
        traffic."""
        e, device = self.efficiency, self.cluster.device
        peak = np.where(self.plans.precision == PRECISIONS.index("fp32"), device.single, device.half)
        waves = count * np.ceil(rows / TILE[0]) * np.ceil(columns / TILE[1]) / device.units
        work = 2.0 * rows * columns * inner * count / (peak * e.matrix)
        moved = (rows * inner + inner * columns + rows * columns) * self.plans.element * count
        return np.maximum(work * (1 + e.fill / inner) * (1 + e.wave / waves), self.moved(moved))

    def moved(self, count: Floats) -> Floats:
        """Seconds to read or write `count` bytes of device memory."""
        return count / (self.cluster.device.bandwidth * self.efficiency.memory)

    def ring(self, count: Floats, ranks: Floats, stride: Floats, halves: float = 2.0) -> Floats:
        """Seconds of an all-reduce of `count` bytes over `ranks` that are `stride` devices apart; `halves=1`: of a
        reduce-scatter or an all-gather alone.

        A ring that leaves its host uses the network share of each of its ranks in the host, where it has fewest. The
        slowest of a plan's rings counts: all others wait for it.
        """
        link, network, latency, far = self._rates()
        inside = self.cluster.fewest_in_host(ranks, stride, self.plans.devices)
        local = inside >= ranks
        rate = np.where(local, link, np.minimum(link, network * inside))
        steps = halves * (ranks - 1)
        return np.where(ranks > 1, steps / ranks * count / rate + steps * np.where(local, latency, far), 0.0)

    def message(self, count: Floats, local: Bools | bool) -> Floats:
        """Seconds of one message of `count` bytes to a rank of the same host (`local`) or of another one."""
        link, network, latency, far = self._rates()
        return count / np.where(local, link, network) + np.where(local, latency, far)

    def _rates(self) -> tuple[float, float, float, float]:
        e = self.efficiency
        return self.cluster.link * e.link, self.cluster.network * e.network, e.latency, e.network_latency
