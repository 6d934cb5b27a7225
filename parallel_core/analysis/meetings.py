"""Which collectives of an imported trace meet, and when the last rank came to each.

The k-th collective of a process group is the same on each of its ranks. Where a trace does not name groups, the k-th
of one rank is taken for the k-th of every rank; of those, ranks that waited for each other end it together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.waits import Causes, among, of_kinds, ordered
from parallel_core.schedule.ir import P2P, Kind

Spans = Mapping[int, NDArray[np.void]]
SKEW_NS = 500_000
"""Differences of clocks and of ends up to this many ns say nothing, and clocks are not corrected for them."""
TOGETHER = 0.1
"""Share of a collective's length by which its ends on two ranks may differ."""
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
    taken: dict[int, list[_Part]] = {}
    for rank, own in rows.items():
        for number, start, end in zip(met[rank], own["start"].tolist(), own["end"].tolist(), strict=True):
            taken.setdefault(number, []).append(_Part(start, rank, end))
    last = {
        (number, one.rank): max(together)
        for number, parts in taken.items()
        for together in ([parts] if sure else _ending_together(parts))
        for one in together
    }
    return {rank: _waited_for(own, [last[number, rank] for number in met[rank]]) for rank, own in rows.items()}


class _Part(NamedTuple):
    """One rank's part in a collective."""

    start: int
    rank: int
    end: int


def _ending_together(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Those that end at one moment, as far as ranks of one collective do: within TOGETHER of its length, or SKEW_NS."""
    ordered_parts = sorted(parts, key=lambda part: part.end)
    out = [ordered_parts[:1]]
    for before, part in pairwise(ordered_parts):
        shorter = min(one.end - one.start for one in (before, part))
        if part.end - before.end > max(SKEW_NS, TOGETHER * shorter):
            out.append([])
        out[-1].append(part)
    return out


def _waited_for(own: NDArray[np.void], last: Sequence[_Part]) -> Causes:
    at, ranks = (np.array([getattr(part, name) for part in last], np.int64) for name in ("start", "rank"))
    waits = (at > own["start"]) & (at <= own["end"])
    return Causes(np.where(waits, at, own["start"]), np.where(waits, ranks, -1))


def _counts(spans: Spans) -> dict[int, int]:
    return {rank: int((rows["kind"] == Kind.BUCKET).sum()) for rank, rows in spans.items()}
