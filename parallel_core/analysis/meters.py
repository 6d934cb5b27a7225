"""Computes how much of the devices' peak a run uses, and which shares of a step are not the model's work.

MFU, model FLOPs utilisation (Chowdhery et al. 2022, PaLM, appendix B): the FLOPs that the model needs for a step (a
backward has twice those of its forward) relative to those that the devices could do in the same time at their peak.
HFU, hardware FLOPs utilisation, also counts recomputation (Korthikanti et al. 2022, section 6.3). Matrix products count
2 m n k; causal attention counts as full attention, as in both papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.breakdown import Breakdown, breakdown, mean
from parallel_core.analysis.step_waits import Shares, StepWaits, shares_of
from parallel_core.layout import Layout
from parallel_core.plan.strategy import model_flops, recompute_share
from parallel_core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step on all `devices`: FLOPs of the `model`, `again` = the share of them that is recomputed, and
    number of `targets`."""

    model: int
    again: float
    targets: int
    devices: int

    @classmethod
    def of(cls, spec: RunSpec) -> Work:
        """That of a run."""
        flops = model_flops(spec.model, spec.train.global_batch)
        return cls(flops, recompute_share(spec), spec.tokens_per_step, spec.parallel.world)

    def speeds(self, seconds: float, peak: float | None = None) -> dict[str, float]:
        """The values of a step of `seconds` by name of their series.

        tokens_per_s; tflops = those of the model, in 10^12 per second and device; and with `peak`, the FLOP/s of all
        devices together, mfu and hfu, 0 .. 1.
        """
        found = {"tokens_per_s": self.targets / seconds, "tflops": self.model / seconds / self.devices / 1e12}
        if peak:
            mfu = self.model / seconds / peak
            found |= {"mfu": mfu, "hfu": mfu * (1 + self.again)}
        return found


SHARES = {"bubble_share": "bubble", "exposed_share": "communication", "recompute_share": "recompute"}
"""Series of a run's steps -> the component of a `Breakdown` (or of `step_waits.Shares`) whose share it is."""


def shares(parts: Breakdown) -> dict[str, float]:
    """The values of SHARES for one step, 0 .. 1."""
    return {name: parts.share(component) for name, component in SHARES.items()}


def step_shares(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[str, float]:
    """The values of SHARES for one traced step, from the mean over its ranks; `spans` as for `breakdown`."""
    return shares(mean(breakdown(spans, layout).values()))


def every_step(
    found: Mapping[int, StepWaits], layout: Layout
) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
    """The steps that all ranks have recorded, and for each the values of SHARES that `step_shares` of its spans gives.

    `found`: what each rank has recorded, its steps in ascending order, none of them twice.
    """
    return values_of(shares_of(found, layout))


def values_of(parts: Shares) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
    """The steps, and for each the values of SHARES."""
    total = np.maximum(parts.total, 1)
    return parts.steps, {name: getattr(parts, component) / total for name, component in SHARES.items()}
