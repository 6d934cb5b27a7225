"""The most FLOP/s that a rank's device can do: from the catalogue, else measured by a matrix product of its own.

The measured one is what utilisation on a CPU is held against: the best of some square products in the run's precision,
by the same library and thread that train, at the same moment on every rank. It takes about 20 ms, before the timed
steps begin.
"""

from __future__ import annotations

import time
from functools import lru_cache

import torch

from parallel_core.engine.device import Device
from parallel_core.engine.precision import DTYPES
from parallel_core.plan.chips import Peak, listed
from parallel_core.spec import Precision

SIDES = {"cpu": (128, 256, 512), "cuda": (1024, 4096, 8192)}
BUDGET_S = 0.015
"""No product is begun when those that count have taken it: a number type that the library multiplies slowly stays with
small ones. The first one of a size does not count: a GPU's library may be loading what it multiplies with."""


def device_peak(device: Device, precision: Precision) -> Peak:
    """Of this rank's device. On a GPU what was found once is kept (`of_gpu`)."""
    return of_gpu(device, precision) if device.kind == "cuda" else measured(device, precision)


@lru_cache(maxsize=1)
def of_gpu(device: Device, precision: Precision) -> Peak:
    """To be asked for while no receive is posted: a product that was never launched may wait until the device is idle
    (see `rehearsal`)."""
    if (known := listed(device.name, precision)) is not None:
        return known
    before, found = device.memory_peak(), measured(device, precision)
    if device.memory_peak() > before:  # that of the products, up to 1 GiB: the run's own comes again with every step
        device.forget_memory_peak()
    return found


@torch.no_grad()
def measured(device: Device, precision: Precision) -> Peak:
    """The best rate over SIDES; the largest is repeated until the budget is spent."""
    sides, best, spent = SIDES[device.kind], 0.0, 0.0
    for side in sides:
        a = torch.full((side, side), 0.5, dtype=DTYPES[precision], device=device.torch)
        out = a @ a
        device.synchronise()
        while True:
            began = time.perf_counter()
            torch.mm(a, a, out=out)
            device.synchronise()
            took = time.perf_counter() - began
            best, spent = max(best, 2 * side**3 / took), spent + took
            if side != sides[-1] or spent >= BUDGET_S:
                break
        if spent >= BUDGET_S:
            break
    return Peak(best, f"{precision} matrix product, measured")
