"""Time in which processes of others had the core is no part of what something takes."""

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
"""Of a rank: where others had more, no pass tells what it would take alone."""
Found = TypeVar("Found")


def undisturbed(act: Callable[[], Found], group: Group, device: Device) -> tuple[Found, float]:
    """(what `act` gives, the share of its time in which no process of others had the core). A group gets on only while
    none of its ranks is held up; None: it waits for nobody."""
    began, before, own = time.perf_counter(), host.waited(), _beside()
    found = act()
    waited, lasted = host.waited() - before - (_beside() - own), time.perf_counter() - began
    share = max(_LEAST_SHARE, 1.0 - max(0.0, waited) / lasted)
    return found, share if group is None else _of_all(share, group, device)


def _beside() -> float:
    """Processor seconds of this process's other threads. They share the core: what this one waited for them is its own
    work, as gloo's threads are that copy and add for it."""
    return time.process_time() - time.thread_time()


def _of_all(share: float, group: Group, device: Device) -> float:
    """Cores are held up each by others of its own, so no rank is for the product of all their shares. Not for the
    least of them, which takes all hold-ups to be at once; and not for 1 less the sum of what is missing of each, which
    takes none to be, and is below 0 where each core is held up for half of the time."""
    told = torch.tensor([math.log(share)], dtype=torch.float64, device=device.torch)
    all_reduce(told, group).wait()
    return math.exp(float(told.item()))
