"""Peak rates of known devices, dense (no sparsity), by the name that the driver gives and by the run's precision.

16-bit rates are those of tensor cores with fp32 accumulation. fp32 is the plain rate, since the engine multiplies fp32
without rounding to TF32. A device or precision that is not listed is measured instead (`engine.peak`).
"""

from __future__ import annotations

from typing import NamedTuple

from parallel_core.spec import Precision


class Chip(NamedTuple):
    """`words` all occur in the driver's name for the device. Peaks in TFLOP/s; None = not listed."""

    words: tuple[str, ...]
    half: float
    fp32: float | None
    fp64: float | None
    bf16: bool
    source: str


CHIPS = (
    Chip(("B200",), 2250.0, None, None, True, "NVIDIA Blackwell data sheet"),
    Chip(("H200",), 989.4, 66.9, 66.9, True, "NVIDIA H200 data sheet"),
    Chip(("H100", "PCIe"), 756.5, 51.2, 51.2, True, "NVIDIA H100 data sheet"),
    Chip(("H100",), 989.4, 66.9, 66.9, True, "NVIDIA H100 data sheet"),
    Chip(("A100",), 312.0, 19.5, 19.5, True, "NVIDIA A100 data sheet"),
    Chip(("V100", "SXM2"), 125.0, 15.7, 7.8, False, "NVIDIA V100 data sheet"),
    Chip(("RTX 4090",), 165.2, 82.6, None, True, "NVIDIA Ada architecture paper"),
    Chip(("L4",), 121.0, 30.3, None, True, "NVIDIA L4 data sheet"),
    Chip(("T4",), 65.0, 8.1, None, False, "NVIDIA T4 data sheet"),
)
"""The first that fits holds."""


class Peak(NamedTuple):
    """Most FLOP/s that a device can do, and in few words where the number is from."""

    flops_per_s: float
    source: str


def listed(device: str, precision: Precision) -> Peak | None:
    """Peak of the device that the driver calls `device`; None where this table does not know it."""
    tokens = device.replace("-", " ").split()
    for chip in CHIPS:
        if all(word in tokens or (" " in word and word in device) for word in chip.words):
            half = chip.half if precision == "fp16" or chip.bf16 else None
            rate = {"fp32": chip.fp32, "fp64": chip.fp64}.get(precision, half)
            return None if rate is None else Peak(rate * 1e12, chip.source)
    return None
