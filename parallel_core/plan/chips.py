"""Peak rates of known devices, dense (no sparsity), by the name that the driver gives and by the run's precision.

They are those of the planner's catalogue (`data/hardware.json`): 16-bit rates are of tensor cores with fp32
accumulation, fp32 the plain rate, since the engine multiplies fp32 without rounding to TF32. A device or precision that
is not listed is measured instead (`engine.peak`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from parallel_core.plan.cluster.store import rows
from parallel_core.spec import Precision


class Peak(NamedTuple):
    """Most FLOP/s that a device can do, and in few words where the number is from."""

    flops_per_s: float
    source: str


def listed(device: str, precision: Precision) -> Peak | None:
    """Peak of the device that the driver calls `device`; None where the catalogue does not know it."""
    tokens = device.replace("-", " ").split()
    if not _OTHERS.isdisjoint(tokens):
        return None
    for row in _named():
        driver = row["driver"]
        if all(word in tokens or (" " in word and word in device) for word in driver["words"]):
            half = row["half_tflops"] if precision == "fp16" or row["bf16"] else None
            rate = {"fp32": driver["fp32_tflops"], "fp64": driver["fp64_tflops"]}.get(precision, half)
            return None if rate is None else Peak(rate * 1e12, driver["source"])
    return None


_OTHERS = frozenset({"MIG", "NVL"})
"""In the name of a part of a GPU, and of one on a card that draws less power than the listed GPU of its name."""


@lru_cache(maxsize=1)
def _named() -> list[dict[str, Any]]:
    """Rows that a driver's name leads to, those of more words first: an H100 PCIe is an H100, too."""
    return sorted((row for row in rows("hardware") if "driver" in row), key=lambda row: -len(row["driver"]["words"]))
