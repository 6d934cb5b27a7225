"""The peak FLOP/s of a rank's device: from the catalogue of chips, otherwise measured by matrix products.

The measured peak, to which CPU utilisation refers, is the best of several square products in the run's precision, by
the library and thread that train, on every rank at the same time: plain ones, and ones with a transposed matrix, as a
linear layer has them, which a CPU multiplies several times as fast in fp16. It takes about 20 ms, before the timed
steps.
"""

from __future__ import annotations

import time
from functools import lru_cache
from itertools import cycle
from typing import NamedTuple

import torch

from parallel_core.engine.device import Device
from parallel_core.engine.precision import DTYPES
from parallel_core.plan.chips import Peak, listed
from parallel_core.spec import Precision

SIDES = {"cpu": (128, 256, 512), "cuda": (1024, 4096, 8192)}
BUDGET_S = 0.015
"""Time budget of the counted products in seconds, after which none is started: a dtype with slow products stays at
small sizes. The first two products of each size are not counted, since a GPU library may load its kernels then."""


class TotalPeak(NamedTuple):
    """Peak FLOP/s of all `devices` of a run, and where the number comes from. Ranks that share a device, a GPU or a
    core, share its peak."""

    flops_per_s: float
    source: str
    devices: int


def device_peak(device: Device, precision: Precision) -> Peak:
    """Returns the peak of this rank's device. On a GPU the first result is kept (`of_gpu`)."""
    return of_gpu(device, precision) if device.kind == "cuda" else measured(device, precision)


@lru_cache(maxsize=1)
def of_gpu(device: Device, precision: Precision) -> Peak:
    """Returns the peak of a GPU. Call it while no receive is posted: the first launch of a kernel may wait until the
    device is idle (see `rehearsal`)."""
    if (known := listed(device.name, precision)) is not None:
        return known
    before, found = device.memory_peak(), measured(device, precision)
    if device.memory_peak() > before:  # the products took up to 1 GiB; the peak of the run recurs in every step
        device.forget_memory_peak()
    return found


@torch.no_grad()
def measured(device: Device, precision: Precision) -> Peak:
    """Returns the best rate over SIDES; the largest products are repeated in turns until the budget is spent."""
    sides, best, spent = SIDES[device.kind], 0.0, 0.0
    for side in sides:
        a = torch.full((side, side), 0.5, dtype=DTYPES[precision], device=device.torch)
        out = torch.mm(a, a)
        torch.mm(a, a.t(), out=out)
        device.synchronise()
        for right in cycle((a.t(), a)) if side == sides[-1] else (a.t(), a):
            began = time.perf_counter()
            torch.mm(a, right, out=out)
            device.synchronise()
            took = time.perf_counter() - began
            best, spent = max(best, 2 * side**3 / took), spent + took
            if spent >= BUDGET_S:
                break
        if spent >= BUDGET_S:
            break
    return Peak(best, f"{precision} matrix product, measured")
