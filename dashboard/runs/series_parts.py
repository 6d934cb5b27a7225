"""The points of a series that several attempts of a run recorded, as one series: without access to the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from parallel_core.observe.records import POINT

Part = tuple[int, np.ndarray]
"""(number of the attempt, points)."""


def merged(
    chunks: Iterable[tuple[int, int, Any]], early: Mapping[int, float], begun: Mapping[int, int]
) -> tuple[list[Part], dict[int, np.ndarray]]:
    """The points of all attempts; each later attempt replaces the earlier ones from its first step on, or from the one
    in `begun`. And by the attempt's number those that were replaced, if there are any. `early` = `host_clocks.ahead`:
    times become those of the broker's clock. `chunks` = (attempt, first step, points or None), in order."""
    firsts, rows = dict(begun), list(chunks)
    for number, first, _ in rows:
        firsts[number] = min(first, firsts.get(number, first))
    parts: list[Part] = []
    replaced: dict[int, list[np.ndarray]] = {}
    for number, _, data in rows:
        if data is None:
            continue
        points = np.frombuffer(bytes(data), POINT).copy()
        points["time"] -= early.get(number, 0.0)
        later = [first for other, first in firsts.items() if other > number]
        valid = points["step"] < min(later, default=np.inf)
        parts.append((number, points[valid]))
        if not valid.all():
            replaced.setdefault(number, []).append(points[~valid])
    return parts, {number: np.concatenate(own) for number, own in replaced.items()}


def joined(parts: Sequence[Part], *, pauses: bool = True) -> np.ndarray:
    """The parts of `merged`, one after another. Without `pauses`, those of each later attempt are moved to follow the
    ones before; so they are where they would else begin before these, by a clock that no heartbeat has told."""
    held = np.empty(0, POINT)
    for _, own in groupby(parts, key=itemgetter(0)):
        points = np.concatenate([part for _, part in own])
        if not pauses or (len(held) and len(points) and points["time"][0] < held["time"][-1]):
            points["time"] -= pause(held, points)
        held = np.concatenate([held, points])
    return held


def followed(
    parts: Sequence[Part], replaced: Mapping[int, np.ndarray], *, pauses: bool
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """`joined`, and what was replaced: without `pauses` moved as the attempt that it is of. Attempts of which nothing
    holds are moved towards the first of which something does: `metrics.grown` reads few of their points."""
    if pauses:
        return joined(parts), dict(replaced)
    held, moved, none = np.empty(0, POINT), dict[int, np.ndarray](), np.empty(0, POINT)
    kept = {number: np.concatenate([part for _, part in own]) for number, own in groupby(parts, key=itemgetter(0))}
    lost_all = none
    for number in sorted({*kept, *replaced}):
        own, lost = kept.get(number, none), replaced.get(number, none).copy()
        whole = np.concatenate([own, lost])
        seconds = pause(held if len(held) else lost_all, whole)
        if len(own) and not len(held):
            for earlier in moved.values():
                earlier["time"] += seconds
            seconds = 0.0
        own["time"] -= seconds
        lost["time"] -= seconds
        held = np.concatenate([held, own])
        if len(lost):
            moved[number] = lost
            lost_all = np.concatenate([lost_all[lost_all["step"] < lost["step"][0]], lost])
    return held, moved


def pause(before: np.ndarray, later: np.ndarray) -> float:
    """Seconds to subtract from the times of a later attempt's points, so that its first point comes a usual step after
    the last point `before` it that is still valid, or where there is none, when the points before it began."""
    if not len(before) or not len(later):
        return 0.0
    kept = before[before["step"] < later["step"][0]]
    if not len(kept):
        return float(later["time"][0] - before["time"][0])
    usual = kept if len(kept) > 1 else later
    seconds = np.diff(usual["time"].astype(np.float64)) / np.diff(usual["step"].astype(np.float64))
    missed = int(later["step"][0]) - int(kept["step"][-1])
    return float(later["time"][0] - kept["time"][-1] - missed * (np.median(seconds) if len(seconds) else 0.0))


def attempt_count(parts: Sequence[Part]) -> int:
    """Of how many attempts there are points."""
    return len({number for number, points in parts if len(points)})
