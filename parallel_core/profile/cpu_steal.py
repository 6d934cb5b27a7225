"""Corrects measured times for the time in which other processes had the core."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from parallel_core.engine.collectives import Group, all_reduce
from parallel_core.engine.device import Device
from parallel_core.observe import host

_LEAST_SHARE = 0.1
"""Smallest share of a rank that is corrected for: with less, a pass says nothing about its undisturbed time."""
Found = TypeVar("Found")


def undisturbed(act: Callable[[], Found], group: Group, device: Device) -> tuple[Found, float]:
    """Returns (result of `act`, share of its time in which no other process had the core).

    A group only makes progress while none of its ranks is held up, so its share is that of all ranks; `group` None:
    `act` does not wait for other ranks.
    """
    began, before, own = time.perf_counter(), host.waited(), _beside()
    found = act()
    beside = max(0.0, _beside() - own)  # two clocks, read one after the other: may be below 0
    waited, lasted = host.waited() - before - beside, time.perf_counter() - began
    share = max(_LEAST_SHARE, 1.0 - max(0.0, waited) / lasted)
    return found, share if group is None else _share_of_group(share, group, device)


def _beside() -> float:
    """Returns the processor seconds of this process's other threads.

    They share the core: waiting for them is the process's own work, as with gloo's threads, which copy and add for it.
    """
    return time.process_time() - time.thread_time()


def _share_of_group(share: float, group: Group, device: Device) -> float:
    """Returns the share of time in which no rank is held up: the product of all shares, as cores are held up
    independently.

    The smallest share would assume that all are held up at the same time; 1 less the sum of what is missing of each
    would assume that they never are, and would be below 0 for cores that are each held up for half of the time.
    """
    told = torch.tensor([math.log(share)], dtype=torch.float64, device=device.torch)
    all_reduce(told, group).wait()
    return math.exp(float(told.item()))
