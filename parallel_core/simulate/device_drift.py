"""Devices that are slower for a while, each at its own time: whoever waits for others waits for whichever is slow now.

Cores of a shared host drift one by one, for about a second at a time: some steps. A step that ends when its last rank
does takes what the slowest device of the moment makes of it, not what devices take on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIKELY = (10, 90)
"""Percentiles of moments between which a prediction is said to lie."""
_WINDOW = 3
"""Times of the reference work that one moment of a run is the mean of: of one alone hiccups would say more."""


class Spell(NamedTuple):
    """A `share` of the time in which each global rank's device takes `slower` times as long as the table says."""

    share: float
    slower: tuple[float, ...]


def spells_of(known: Sequence[Sequence[float]], devices: Sequence[int]) -> list[Spell]:
    """Of a run whose ranks are bound to `devices`; their mean is 1. None of a run on one device.

    `known` is the pace of each profiled device at some moments. Devices that were not profiled are as those that were,
    at other moments.
    """
    used = sorted(set(devices))
    if not known or len(used) < 2:
        return []
    table, at = _paces(known, used), {device: i for i, device in enumerate(used)}
    return _by_slowest(table[:, [at[device] for device in devices]])


def drift(known: Sequence[Sequence[float]], devices: Sequence[int]) -> tuple[float, float] | None:
    """The 10th and the 90th percentile, over the moments of a profile, of what its slowest device made of a step, times
    the mean: how far one run may be from what all of them take on average. None where no moments are `known`."""
    if not known:
        return None
    slowest = _paces(known, sorted(set(devices))).max(1)
    low, high = np.percentile(slowest, LIKELY) / slowest.mean()
    return float(low), float(high)


def _paces(known: Sequence[Sequence[float]], used: Sequence[int]) -> NDArray[np.float64]:
    """(moments, devices `used`), their mean 1."""
    paces = np.array(known, np.float64)
    moments, width = paces.shape
    shifts = [device // width * max(1, moments // 3) for device in used]
    columns = [np.roll(paces[:, device % width], -shift) for device, shift in zip(used, shifts, strict=True)]
    table = np.stack(columns, 1)
    return table / table.mean()


def spells_beside(references: Sequence[Sequence[float]], usual: float) -> list[Spell]:
    """Of a run whose ranks took those seconds, each for the reference work behind the same steps; `usual` seconds are
    what the table is of. None where a rank did not do it."""
    if usual <= 0 or not references or not min(map(len, references)):
        return []
    taken = np.array(references, np.float64).T / usual
    windows = np.array_split(taken, max(1, len(taken) // _WINDOW))
    return _by_slowest(np.array([window.mean(0) for window in windows]))


def _by_slowest(table: NDArray[np.float64]) -> list[Spell]:
    """Rows are moments, columns ranks: one spell for each rank that is the slowest at some of them, their mean.

    A step is as long as its slowest rank makes it, so while that is the same one the mean of moments has the mean of
    their steps.
    """
    slowest = table.argmax(1)
    of = (table[slowest == rank] for rank in np.unique(slowest))
    return [Spell(len(rows) / len(table), tuple(rows.mean(0).tolist())) for rows in of]
