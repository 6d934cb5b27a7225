"""Time in which processes of others had the core is no part of what something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from parallel_core.engine.collectives import Group
from parallel_core.engine.device import Device
from parallel_core.observe import host
from parallel_core.profile.links import largest

_LEAST_SHARE = 0.1
Found = TypeVar("Found")


def undisturbed(act: Callable[[], Found], group: Group, device: Device) -> tuple[Found, float]:
    """(what `act` gives, the share of its time in which no process of others had the core). A group is held up wherever
    one of its ranks is; None: it waits for nobody."""
    began, before = time.perf_counter(), host.waited()
    found = act()
    waited, lasted = host.waited() - before, time.perf_counter() - began
    if group is not None:
        waited = largest(waited, group, device)
    return found, max(_LEAST_SHARE, 1.0 - waited / lasted)
