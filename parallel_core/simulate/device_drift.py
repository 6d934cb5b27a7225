"""Devices that are slower for a while, each at its own time: a step waits for whichever is slow at the moment.

Cores of a shared host drift independently, for about a second at a time, i.e. some steps. A step that ends with its
last rank is determined by the slowest device at the moment, not by the average device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIKELY = (10, 90)
"""Percentiles of the moments that bound a prediction's range."""
_WINDOW = 3
"""Reference measurements averaged to one moment of a run: a single one mostly shows hiccups."""


class Spell(NamedTuple):
    """For `share` of the time each rank's device is slowed by `slower[rank]`."""

    share: float
    slower: tuple[float, ...]


def spells_of(known: Sequence[Sequence[float]], devices: Sequence[int]) -> list[Spell]:
    """Spells of a run whose ranks are bound to `devices`, with mean slowdown 1; [] for a run on one device.

    `known`: pace of each profiled device at a number of moments. Devices that were not profiled reuse these, shifted in
    time.
    """
    used = sorted(set(devices))
    if not known or len(used) < 2:
        return []
    table, at = _paces(known, used), {device: i for i, device in enumerate(used)}
    return _by_slowest(table[:, [at[device] for device in devices]])


def drift(known: Sequence[Sequence[float]], devices: Sequence[int]) -> tuple[float, float] | None:
    """10th and 90th percentile of a step's length with the slowest device at each moment, relative to the mean: how far
    one run may differ from the average of all. None if no moments are `known`."""
    if not known:
        return None
    slowest = _paces(known, sorted(set(devices))).max(1)
    low, high = np.percentile(slowest, LIKELY) / slowest.mean()
    return float(low), float(high)


def _paces(known: Sequence[Sequence[float]], used: Sequence[int]) -> NDArray[np.float64]:
    """[moment, used device] -> pace, with mean 1."""
    paces = np.array(known, np.float64)
    moments, width = paces.shape
    shifts = [device // width * max(1, moments // 3) for device in used]
    columns = [np.roll(paces[:, device % width], -shift) for device, shift in zip(used, shifts, strict=True)]
    table = np.stack(columns, 1)
    return table / table.mean()


def spells_beside(references: Sequence[Sequence[float]], usual: float) -> list[Spell]:
    """Spells of a run from the seconds that each rank took for the reference work after the same steps; `usual`:
    seconds at the table's pace. [] where a rank did not run it."""
    if usual <= 0 or not references or not min(map(len, references)):
        return []
    taken = np.array(references, np.float64).T / usual
    windows = np.array_split(taken, max(1, len(taken) // _WINDOW))
    return _by_slowest(np.array([window.mean(0) for window in windows]))


def _by_slowest(table: NDArray[np.float64]) -> list[Spell]:
    """[moment, rank] -> for each rank that is the slowest at some moments one spell, with the mean pace over these
    moments.

    The slowest rank determines the step, so while it is the same rank, averaging moments averages their steps.
    """
    slowest = table.argmax(1)
    of = (table[slowest == rank] for rank in np.unique(slowest))
    return [Spell(len(rows) / len(table), tuple(rows.mean(0).tolist())) for rows in of]
