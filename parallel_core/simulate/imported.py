"""What-if for a trace of a job that was not launched here: its spans replayed with faster links or devices.

Nothing is known of the job but its spans, so dependencies are inferred. A span depends on the one that ended last on
its rank before it, and starts as long after that as measured (host time is kept), but never before the previous span of
its lane ends. A collective (`analysis.meetings` says which are the same one) lasts from the arrival of the last of its
ranks, for as long as measured from then on. Without changes every span keeps its measured time.

A trace does not say which message a pipeline rank waited for, so pipelines are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.meetings import Groups, Spans, named, numbers
from parallel_core.analysis.rows import by_start
from parallel_core.analysis.waits import step_start
from parallel_core.schedule.ir import P2P, Kind

MOST_SPANS = 40_000
"""Most spans: walking through more takes seconds."""
_NONE = -1
_OF_HOST = (Kind.DATA, Kind.SETUP)
"""Kinds that a faster device does not speed up."""


@dataclass
class _Rank:
    """The rows of one rank by start, their dependencies, and their new times (ns from the start of the step)."""

    rows: NDArray[np.void]
    behind: list[int]
    """Row that ended last before each starts; -1: none."""
    gaps: list[int]
    """Time from that end (or the start of the step) to its own start."""
    ahead: list[int]
    """The previous row in its lane; -1: none, or not ended yet."""
    collective: list[int]
    """Its number among the collectives of the job; -1: not a collective."""
    starts: list[float]
    ends: list[float]


def replayed(
    spans: Spans, links: float = 1.0, device: float = 1.0, groups: Groups | None = None
) -> dict[int, NDArray[np.void]]:
    """The spans with communication `links` and work `device` times as fast; ns from the start of the step.

    `groups` that do not name the group of every collective are ignored (`named`). Raises ValueError where the result
    cannot be determined: a pipeline, too many spans, collectives that do not match.
    """
    _check(spans)
    zero = step_start(spans)
    ordered = {rank: by_start(rows[rows["kind"] != Kind.STEP]) for rank, rows in spans.items()}
    met = numbers(ordered, groups if groups and named(spans, groups) else None)
    ranks = {rank: _rank(rows, met[rank], zero) for rank, rows in ordered.items()}
    _walk(ranks, _lags(ranks), links, device)
    return {rank: _moved(spans[rank], own, zero) for rank, own in ranks.items()}


def _check(spans: Spans) -> None:
    if sum(map(len, spans.values())) > MOST_SPANS:
        raise ValueError(f"the step has more than {MOST_SPANS} spans, too many to walk through while you wait")
    if any(np.isin(rows["kind"], [int(kind) for kind in P2P]).any() for rows in spans.values()):
        raise ValueError("ranks send to each other, and a trace does not say which message a rank waited for")


def _rank(rows: NDArray[np.void], met: list[int], zero: int) -> _Rank:
    """Returns the dependencies of rows sorted by start, whose collectives have the numbers `met`."""
    starts, ends = rows["start"] - zero, rows["end"] - zero
    by_end = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[by_end], starts, "right") - 1
    # A span of zero length may end where it starts: no span depends on itself or a later one.
    behind = np.where(at >= 0, by_end[np.maximum(at, 0)], _NONE)
    behind = np.where(behind < np.arange(len(rows)), behind, np.arange(len(rows)) - 1)
    since = np.where(behind >= 0, ends[np.maximum(behind, 0)], 0)
    talks = rows["kind"] == Kind.BUCKET
    numbers = np.full(len(rows), _NONE)
    numbers[talks] = met
    count = len(rows)
    gaps, nothing = (starts - since).tolist(), [math.nan] * count
    return _Rank(rows, behind.tolist(), gaps, _ahead(starts, ends, talks), numbers.tolist(), nothing, nothing.copy())


def _ahead(starts: NDArray[np.int64], ends: NDArray[np.int64], talks: NDArray[np.bool_]) -> list[int]:
    out, last = [], {False: _NONE, True: _NONE}
    for i, talk in enumerate(talks.tolist()):
        before = last[talk]
        out.append(before if before >= 0 and ends[before] <= starts[i] else _NONE)
        last[talk] = i
    return out


_Lags = Mapping[int, Mapping[int, int]]
"""[collective][rank]: ns from the arrival of the last of its ranks to the end on this rank."""


def _lags(ranks: Mapping[int, _Rank]) -> _Lags:
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, own in ranks.items():
        for i, number in enumerate(own.collective):
            if number >= 0:
                found.setdefault(number, {})[rank] = int(own.rows["start"][i]), int(own.rows["end"][i])
    last = {number: max(start for start, _ in times.values()) for number, times in found.items()}
    return {number: {rank: end - last[number] for rank, (_, end) in times.items()} for number, times in found.items()}


def _walk(ranks: Mapping[int, _Rank], lags: _Lags, links: float, device: float) -> None:
    """Sets the times of all rows: each rank advances until it needs a collective that others have not reached."""
    came: dict[int, dict[int, tuple[int, float]]] = {}
    at = dict.fromkeys(ranks, 0)
    moving = True
    while moving:
        moving = False
        for rank, own in ranks.items():
            while at[rank] < len(own.rows) and _place(own, at[rank], device):
                i, moving = at[rank], True
                at[rank] += 1
                if (number := own.collective[i]) >= 0:
                    group = came.setdefault(number, {})
                    group[rank] = i, own.starts[i]
                    if len(group) == len(lags[number]):
                        _end(ranks, lags[number], group, links)
    if any(at[rank] < len(own.rows) for rank, own in ranks.items()):
        raise ValueError("the collectives of the ranks wait for each other in a circle")


def _place(own: _Rank, i: int, device: float) -> bool:
    """Sets when row `i` starts and, unless it is a collective, when it ends; False if that is not known yet."""
    behind, ahead = own.behind[i], own.ahead[i]
    since = own.ends[behind] if behind >= 0 else 0.0
    free = own.ends[ahead] if ahead >= 0 else 0.0
    if math.isnan(since) or math.isnan(free):
        return False
    own.starts[i] = max(since + own.gaps[i], free)
    if own.collective[i] < 0:
        took = float(own.rows["end"][i] - own.rows["start"][i])
        own.ends[i] = own.starts[i] + (took if own.rows["kind"][i] in _OF_HOST else took / device)
    return True


def _end(
    ranks: Mapping[int, _Rank], lags: Mapping[int, int], group: Mapping[int, tuple[int, float]], links: float
) -> None:
    """Sets the ends of a collective that all of its ranks have reached."""
    last = max(start for _, start in group.values())
    for rank, (i, start) in group.items():
        lag = lags[rank]
        ranks[rank].ends[i] = max(start, last + (lag / links if lag > 0 else lag))


def _moved(before: NDArray[np.void], own: _Rank, zero: int) -> NDArray[np.void]:
    """The rows at their new times after the STEP row, which ends as long after the last of them as measured."""
    rows = own.rows.copy()
    rows["start"], rows["end"] = np.rint(own.starts), np.rint(own.ends)
    step = before[before["kind"] == Kind.STEP][:1].copy()
    tail = int(step["end"][0] - own.rows["end"].max()) if len(step) and len(rows) else 0
    step["start"] -= zero
    step["end"] = (int(rows["end"].max()) if len(rows) else 0) + max(0, tail)
    return np.concatenate([step, rows])
