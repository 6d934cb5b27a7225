"""How much of what the devices can do a run uses, and which part of a step is not the model's work.

MFU, model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B): the FLOPs that the model needs for a step,
forward and backward at twice the forward, over those that the devices do in the same time at their peak. HFU, hardware
FLOPs utilisation, counts what was really multiplied, recomputation too (Korthikanti et al. 2022, section 6.3). Matrix
products count 2 m n k, causal attention as if it were full, as both papers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.breakdown import Breakdown, breakdown, mean
from parallel_core.layout import Layout
from parallel_core.plan.strategy import model_flops, recompute_share
from parallel_core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Work:
    """One step over all `devices`: FLOPs of the model, `again` of it once more in recomputation, and its targets."""

    model: int
    again: float
    targets: int
    devices: int

    @classmethod
    def of(cls, spec: RunSpec) -> Work:
        flops = model_flops(spec.model, spec.train.global_batch)
        return cls(flops, recompute_share(spec), spec.tokens_per_step, spec.parallel.world)

    def speeds(self, seconds: float, peak: float | None = None) -> dict[str, float]:
        """By name of the series, of a step of so many seconds.

        tokens_per_s; tflops: the model's, 10^12 a second and device; where `peak` is known (FLOP/s of all devices
        together) mfu and hfu, 0 .. 1.
        """
        found = {"tokens_per_s": self.targets / seconds, "tflops": self.model / seconds / self.devices / 1e12}
        if peak:
            mfu = self.model / seconds / peak
            found |= {"mfu": mfu, "hfu": mfu * (1 + self.again)}
        return found


SHARES = {"bubble_share": "bubble", "exposed_share": "communication", "recompute_share": "recompute"}
"""Series of traced steps -> what of a `Breakdown` they are the share of."""


def shares(parts: Breakdown) -> dict[str, float]:
    """The SHARES of one step, 0 .. 1."""
    return {name: parts.share(component) for name, component in SHARES.items()}


def step_shares(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[str, float]:
    """SHARES of one traced step, mean over its ranks; `spans` as for `breakdown`."""
    return shares(mean(breakdown(spans, layout).values()))
