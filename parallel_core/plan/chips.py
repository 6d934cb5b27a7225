"""Peak rates of known devices, dense (no sparsity), by the driver's device name and the run's precision.

The rates are those of the planner's catalogue (`data/hardware.json`): tensor cores with fp32 accumulation for 16 bits;
the plain rate for fp32, since the engine multiplies fp32 without rounding to TF32. Devices and precisions that are not
listed are measured instead (`engine.peak`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from parallel_core.plan.cluster.store import rows
from parallel_core.spec import Precision


class Peak(NamedTuple):
    """Peak FLOP/s of a device, and a short text on where the number comes from."""

    flops_per_s: float
    source: str


def listed(device: str, precision: Precision) -> Peak | None:
    """Peak of the device with this driver name; None where the catalogue does not list the device or the precision."""
    tokens = device.replace("-", " ").split()
    if not _OTHERS.isdisjoint(tokens) or _SHARE.search(device):
        return None
    for row in _named():
        driver = row["driver"]
        if all(word in tokens or (" " in word and word in device) for word in driver["words"]):
            half = row["half_tflops"] if precision == "fp16" or row["bf16"] else None
            single = None if "single_tflops" in row["unverified"] else row["single_tflops"]
            rate = {"fp32": single, "fp64": driver["fp64_tflops"]}.get(precision, half)
            return None if rate is None else Peak(rate * 1e12, driver["source"])
    return None


_OTHERS = frozenset({"MIG", "GRID", "NVL", "Laptop", "Max", "D"})
"""Words in the names of parts of a GPU (MIG, GRID), and of slower ones than the listed GPU: with a lower power limit
(NVL, Laptop, Max-Q) or fewer multiprocessors (Laptop, D)."""
_SHARE = re.compile(r"-\d+[ABCQ](ME)?$")
"""The end of the name of a virtual GPU: GiB of memory and a series (NVIDIA vGPU, "Virtual GPU Types"). Even one with
all the memory is scheduled with others, so it has no peak of its own."""


@lru_cache(maxsize=1)
def _named() -> list[dict[str, Any]]:
    """Catalogue rows that have driver names, those with more words first: an H100 PCIe also matches H100."""
    return sorted((row for row in rows("hardware") if "driver" in row), key=lambda row: -len(row["driver"]["words"]))
