"""What if, of a trace of a job that was not launched here: its spans again, with faster links or devices.

Nothing is known of the job but its spans, so what waited for what is read off them. A span begins behind whatever ended
last on its rank before it, as long after as it was measured (the host's time stays), and never before the span ahead of
it in its lane. The k-th collective of one rank is the k-th of every rank: it lasts from when the last one comes, for as
long as it took from then on. Left as it is, every span falls where it was measured.

Which message a rank of a pipeline waited for is not in a trace, so those of pipelines are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.waits import step_start
from parallel_core.schedule.ir import P2P, Kind

MOST_SPANS = 40_000
"""Beyond, walking through them takes seconds."""
Spans = Mapping[int, NDArray[np.void]]
_NONE = -1
_OF_HOST = (Kind.DATA, Kind.SETUP)
"""What a faster device does not hasten."""


@dataclass
class _Rank:
    """The rows of one rank by start, what each begins behind, and their new times (ns from the start of the step)."""

    rows: NDArray[np.void]
    behind: list[int]
    """Row that ended last before each; -1: none."""
    gaps: list[int]
    """From that end (the start of the step) to its own start."""
    ahead: list[int]
    """The row ahead of each in its lane; -1: none that had ended."""
    collective: list[int]
    """Its number among the rank's collectives; -1: it is none."""
    starts: list[float]
    ends: list[float]


def replayed(spans: Spans, links: float = 1.0, device: float = 1.0) -> dict[int, NDArray[np.void]]:
    """The spans with communication `links` and work `device` times as fast; ns from the start of the step.

    Raises ValueError where that cannot be known: a pipeline, too many spans, collectives that do not belong together.
    """
    _check(spans)
    zero = step_start(spans)
    ranks = {rank: _rank(rows[rows["kind"] != Kind.STEP], zero) for rank, rows in spans.items()}
    _walk(ranks, _lags(ranks, zero), links, device)
    return {rank: _moved(spans[rank], own, zero) for rank, own in ranks.items()}


def _check(spans: Spans) -> None:
    if sum(map(len, spans.values())) > MOST_SPANS:
        raise ValueError(f"the step has more than {MOST_SPANS} spans, too many to walk through while you wait")
    if any(np.isin(rows["kind"], [int(kind) for kind in P2P]).any() for rows in spans.values()):
        raise ValueError("ranks send to each other, and a trace does not say which message a rank waited for")


def _rank(rows: NDArray[np.void], zero: int) -> _Rank:
    rows = rows[np.argsort(rows["start"], kind="stable")]
    starts, ends = rows["start"] - zero, rows["end"] - zero
    by_end = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[by_end], starts, "right") - 1
    # A span that takes no time may end where it begins: nothing begins behind itself or a later one.
    behind = np.where(at >= 0, by_end[np.maximum(at, 0)], _NONE)
    behind = np.where(behind < np.arange(len(rows)), behind, np.arange(len(rows)) - 1)
    since = np.where(behind >= 0, ends[np.maximum(behind, 0)], 0)
    talks = rows["kind"] == Kind.BUCKET
    numbers = np.where(talks, np.cumsum(talks) - 1, _NONE)
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


def _lags(ranks: Mapping[int, _Rank], zero: int) -> dict[int, list[int]]:
    """For each rank and collective: from when the last rank came to when it ended here."""
    own = {rank: one.rows[np.array(one.collective) >= 0] if len(one.rows) else one.rows for rank, one in ranks.items()}
    if len({len(rows) for rows in own.values()}) > 1:
        counts = ", ".join(f"rank {rank} has {len(rows)}" for rank, rows in sorted(own.items())[:4])
        raise ValueError(f"not every rank took part in the same collectives: {counts}")
    last = np.max([rows["start"] for rows in own.values()], axis=0)
    return {rank: (rows["end"] - last).tolist() for rank, rows in own.items()}


def _walk(ranks: Mapping[int, _Rank], lags: Mapping[int, list[int]], links: float, device: float) -> None:
    """Sets the times of all rows: each rank goes on until it needs the end of a collective that others are yet to come
    to."""
    came: dict[int, dict[int, tuple[int, float]]] = {}
    at = dict.fromkeys(ranks, 0)
    moving = True
    while moving:
        moving = False
        for rank, own in ranks.items():
            while at[rank] < len(own.rows) and _place(own, at[rank], device):
                i, moving = at[rank], True
                at[rank] += 1
                if own.collective[i] >= 0:
                    group = came.setdefault(own.collective[i], {})
                    group[rank] = i, own.starts[i]
                    if len(group) == len(ranks):
                        _end(ranks, lags, group, own.collective[i], links)
    if any(at[rank] < len(own.rows) for rank, own in ranks.items()):
        raise ValueError("the collectives of the ranks wait for each other in a circle")


def _place(own: _Rank, i: int, device: float) -> bool:
    """Sets when row `i` begins and, of work, when it ends; False where that cannot be known yet."""
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
    ranks: Mapping[int, _Rank],
    lags: Mapping[int, list[int]],
    group: Mapping[int, tuple[int, float]],
    number: int,
    links: float,
) -> None:
    """The ends of a collective to which all have come."""
    last = max(start for _, start in group.values())
    for rank, (i, start) in group.items():
        lag = lags[rank][number]
        ranks[rank].ends[i] = max(start, last + (lag / links if lag > 0 else lag))


def _moved(before: NDArray[np.void], own: _Rank, zero: int) -> NDArray[np.void]:
    """The rows at their new times, behind the step's row, which ends as long after the last of them as it did."""
    rows = own.rows.copy()
    rows["start"], rows["end"] = np.rint(own.starts), np.rint(own.ends)
    step = before[before["kind"] == Kind.STEP][:1].copy()
    tail = int(step["end"][0] - own.rows["end"].max()) if len(step) and len(rows) else 0
    step["start"] -= zero
    step["end"] = (int(rows["end"].max()) if len(rows) else 0) + max(0, tail)
    return np.concatenate([step, rows])
