"""Tensor or pipeline parallelism: speedups in closed form, where one overtakes the other, and their limits.

For a GPT's layers alone (no embedding, no head), on n devices that reach `flops` FLOP/s each; an all-reduce on a ring
takes 2 (n - 1) times alpha + size / (n bandwidth) (Patarasuk and Yuan 2009).

T_1  = 3 B s L (24 h^2 + 4 s h) / flops                        (Narayanan et al. 2021b, equation 3, forward = a third)
T_TP = T_1 / n + 4 L m allreduce(B / m s h e)                  (Shoeybi et al. 2019, section 3: two each way)
T_PP = T_1 / n (m + n - 1) / m + 2 (n - 1) send(B / m s h e)   (Huang et al. 2019; messages show at the ends)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal

from parallel_core.analysis.quantities import bound_text, plural_text
from parallel_core.plan.cluster.problems import LEAST, Problems, require
from parallel_core.rules import divisors

Along = Literal["hidden", "bandwidth", "micro_batches"]
MOST, MOST_TFLOPS, MOST_GBPS, MOST_US = 1 << 20, 1e6, 1e6, 1e7
"""The largest count of anything, rate of a device, bandwidth and latency of a case."""
AROUND = 16
"""A chart covers this factor below and above a case's own value."""
RANGES: dict[Along, tuple[float, float]] = {
    "hidden": (1, MOST * AROUND),
    "bandwidth": (LEAST * 1e9 / AROUND, MOST_GBPS * 1e9 * AROUND),
    "micro_batches": (1, MOST),
}
"""Ranges in which a crossover is searched (`bounds`): all that a case may have, and what its charts cover beyond."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class CrossoverCase:
    """`batch` sequences of `seq` tokens a step, in `micro_batches`; `bandwidth` in bytes/s one way, `alpha` in seconds,
    `element`: bytes of an activation's element. A tensor group divides the `heads` (`limits`)."""

    hidden: float
    layers: int
    seq: int
    batch: int
    micro_batches: float
    devices: int
    flops: float
    bandwidth: float
    alpha: float = 1e-5
    element: int = 2
    heads: int = 32

    def problems(self) -> dict[str, str]:
        """`{field: message}` for impossible values."""
        found = Problems()
        found.number("hidden", self.hidden, 1, MOST)
        found.number("micro_batches", self.micro_batches, 1, MOST)
        for field in ("layers", "heads", "seq", "batch", "devices"):
            found.whole(field, getattr(self, field), 1, MOST)
        if self.micro_batches > self.batch:
            found.add("micro_batches", f"Must be at most the batch, {self.batch}; got {self.micro_batches:.12g}.")
        found.number("flops", self.flops / 1e12, 0, MOST_TFLOPS, " TFLOP/s")
        found.number("bandwidth", self.bandwidth / 1e9, 0, MOST_GBPS, " GB/s")
        if not 0 <= 1e6 * self.alpha <= MOST_US:
            found.add("alpha", f"Must be from 0 to {bound_text(MOST_US)} µs; got {1e6 * self.alpha:g}.")
        return found.messages

    @property
    def size(self) -> float:
        """Bytes of one micro-batch's activations between two layers."""
        return self.batch / self.micro_batches * self.seq * self.hidden * self.element

    def single(self) -> float:
        """Seconds of a step on one device."""
        layer = 24 * self.hidden**2 + 4 * self.seq * self.hidden
        return 3 * self.batch * self.seq * self.layers * layer / self.flops

    def tensor(self) -> float:
        """Speedup of n tensor ranks."""
        n = self.devices
        reduce = 2 * (n - 1) * (self.alpha + self.size / n / self.bandwidth)
        return self.single() / (self.single() / n + 4 * self.layers * self.micro_batches * reduce)

    def pipeline(self) -> float:
        """Speedup of n stages under GPipe or 1F1B; of fewer where there are fewer layers."""
        n, m = min(self.devices, self.layers), self.micro_batches
        message = self.alpha + self.size / self.bandwidth
        return self.single() / (self.single() / n * (m + n - 1) / m + 2 * (n - 1) * message)

    def at(self, along: Along, value: float) -> CrossoverCase:
        """The same case with another value of the measure `along`."""
        changed: dict[str, Any] = {along: value}
        return replace(self, **changed)


def bounds(case: CrossoverCase, along: Along) -> tuple[float, float]:
    """The range of a measure in which a crossover is searched. A batch has at most as many micro-batches as
    sequences."""
    low, high = RANGES[along]
    return low, min(high, case.batch) if along == "micro_batches" else high


def flip(case: CrossoverCase, along: Along) -> float | None:
    """The value of one measure, all else held constant, at which the faster of the two changes; None where it never
    does.

    Found by bisection on a logarithmic scale within `bounds`. Raises Unphysical.
    """
    require(case.problems())
    low, high = bounds(case, along)
    first = _ahead(case, along, low)
    if _ahead(case, along, high) == first:
        return None
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if _ahead(case, along, middle) == first else (low, middle)
    return sqrt(low * high)


def _ahead(case: CrossoverCase, along: Along, value: float) -> bool:
    """Whether tensor parallelism is faster with this value of the measure."""
    moved = case.at(along, value)
    return moved.tensor() > moved.pipeline()


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest speedup of a strategy with any number of devices, and why."""

    name: str
    speedup: float
    formula: str


def limits(case: CrossoverCase) -> list[Limit]:
    """Limits of data, tensor and pipeline parallelism; of tensor ranks the widths that divide the heads are tried.
    Raises Unphysical."""
    require(case.problems())
    layers, m = case.layers, case.micro_batches
    widest = max((replace(case, devices=n) for n in divisors(case.heads)), key=CrossoverCase.tensor)
    return [
        Limit("DP", float(case.batch), f"B = {case.batch}: a sample is the smallest piece of work"),
        Limit("TP", widest.tensor(), _most_with(widest)),
        Limit("PP", layers * m / (layers + m - 1), f"L m / (L + m − 1) with L = {layers} layers, m = {m:g}"),
    ]


def _most_with(widest: CrossoverCase) -> str:
    """Why no tensor group is faster than this one."""
    count, heads = plural_text(widest.devices, "device"), plural_text(widest.heads, "head")
    if widest.devices == widest.heads:
        return f"with {count}: a tensor group divides the {heads}"
    return f"most with {count}, of the widths that divide {heads}: beyond, 4 L m all-reduces take longer than is saved"
