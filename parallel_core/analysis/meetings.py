"""Which collectives of an imported trace meet, and when the last rank came to each.

The k-th collective of a process group is the same on each of its ranks. Where a trace does not name groups, the k-th
of one rank is taken for the k-th of every rank, which is so where all ranks are replicas of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.waits import Causes, among, of_kinds, ordered
from parallel_core.schedule.ir import P2P, Kind

Spans = Mapping[int, NDArray[np.void]]
Groups = Mapping[int, Sequence[str]]
"""Rank -> process group of each of its collectives (BUCKET), by start; '' where nothing names it."""


def named(spans: Spans, groups: Groups) -> bool:
    """Whether `groups` has the process group of every collective of the spans."""
    return all(len(own := groups.get(rank, ())) == count and all(own) for rank, count in _counts(spans).items())


def numbers(spans: Spans, groups: Groups | None) -> dict[int, list[int]]:
    """[rank][k]: number of the rank's k-th collective by start, the same on all ranks that take part in it.

    Raises ValueError where ranks of a group have different numbers of its collectives.
    """
    own = {rank: groups[rank] if groups else [""] * count for rank, count in _counts(spans).items()}
    counts = {rank: Counter(said) for rank, said in own.items()}
    for group in sorted({group for said in own.values() for group in said}):
        here = {rank: said[group] for rank, said in counts.items() if group in said or not groups}
        if len(set(here.values())) > 1:
            listed = ", ".join(f"rank {rank} has {count}" for rank, count in sorted(here.items())[:4])
            raise ValueError(f"not every rank took part in the same collectives: {listed}")
    known: dict[tuple[str, int], int] = {}
    out: dict[int, list[int]] = {}
    for rank, said in own.items():
        seen = Counter[str]()
        out[rank] = []
        for group in said:
            out[rank].append(known.setdefault((group, seen[group]), len(known)))
            seen[group] += 1
    return out


def last_to_come(spans: Spans, groups: Groups | None) -> dict[int, Causes]:
    """For each rank, when the last rank came to each of its collectives, by their start, and which rank that was (-1:
    itself, or one that it did not wait for, as the source of a broadcast does not).

    {} where it is not known which collectives meet: without names of groups in a pipeline, whose stages need not meet,
    and where the ranks of a group have different numbers of them. All spans must use one clock.
    """
    sure = groups is not None and named(spans, groups)
    if len(spans) == 1 or (not sure and any(among(rows, P2P).any() for rows in spans.values())):
        return {}
    try:
        met = numbers(spans, groups if sure else None)
    except ValueError:
        return {}
    rows = {rank: of_kinds(own, Kind.BUCKET) for rank, own in ordered(spans).items()}
    last: dict[int, tuple[int, int]] = {}
    for rank, own in rows.items():
        for number, start in zip(met[rank], own["start"].tolist(), strict=True):
            last[number] = max(last.get(number, (start, rank)), (start, rank))
    return {rank: _waited_for(own, [last[number] for number in met[rank]]) for rank, own in rows.items()}


def _waited_for(own: NDArray[np.void], last: Sequence[tuple[int, int]]) -> Causes:
    at, ranks = np.array(last, np.int64).reshape(-1, 2).T
    waits = (at > own["start"]) & (at <= own["end"])
    return Causes(np.where(waits, at, own["start"]), np.where(waits, ranks, -1))


def _counts(spans: Spans) -> dict[int, int]:
    return {rank: int((rows["kind"] == Kind.BUCKET).sum()) for rank, rows in spans.items()}
