"""Aligns the clocks of the hosts of a job by the ends of its collectives.

A collective ends at one moment for the ranks of its process group, and for no others: of a tensor-parallel group on a
slow host it ends later than of one on a fast host. Without the names of groups, as in traces of Gloo, all ranks of the
same stages are taken for one group. Only steps that both ranks have are compared: cycles of a profiler may be missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.meetings import SKEW_NS
from parallel_core.analysis.quantities import ns_text, plural_text, ranks_text
from parallel_core.analysis.waits import among
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.traces.kineto import RankTrace

_Extents = dict[int, tuple[int, int]]
"""Step -> its begin and end."""
_Ends = dict[tuple[int, str], NDArray[np.int64]]
"""Step and process group ('': unknown) -> ends of its collectives, ascending."""


def aligned(ranks: Mapping[int, RankTrace]) -> list[str]:
    """Shifts the spans of ranks on other (or unknown) hosts so that their collectives end when those of ranks that take
    part in them do. Returns what was moved and what could not be compared, as text for the user."""
    clocks = _Clocks(ranks)
    clocks.align()
    return [*clocks.notes, *clocks.uncompared(), *clocks.silent(), *clocks.disjoint()]


class _Clocks:
    """The clocks of the ranks. Ranks of one host share one; ranks of unknown hosts have one each."""

    def __init__(self, ranks: Mapping[int, RankTrace]) -> None:
        self.ranks, self.notes = ranks, list[str]()
        self.ends = {rank: _collective_ends(trace) for rank, trace in ranks.items()}
        self.by_step = {rank: _counts(trace) for rank, trace in ranks.items()}
        self.count = {rank: sum(own.values()) for rank, own in self.by_step.items()}
        self.first = min((rank for rank, many in self.count.items() if many), default=min(ranks, default=0))
        self.clocks: dict[int, str | int] = {rank: trace.host or rank for rank, trace in sorted(ranks.items())}
        self.compared = {self.clocks.get(self.first)}
        self.stages = _stages(ranks)
        base = self._extents(self.compared)
        self.apart = {clock for clock in set(self.clocks.values()) if not _meets(self._extents({clock}), base)}
        """Clocks by which no step is at the same time as on the first host."""

    def align(self) -> None:
        """Moves every clock that can be compared. Where no rank shares its stages with one of a compared clock, but
        clocks are further apart than a step is long, collectives of other stages are better than none."""
        while pair := (exact := self._pair()) or self._pair(roughly=True):
            self._move(*pair, roughly=not exact)
            self.compared.add(self.clocks[pair[0]])

    def _pair(self, roughly: bool = False) -> tuple[int, int] | None:
        """A rank whose clock is not yet compared, and one with the same collectives (`roughly`: with as many) whose
        clock is; None without any."""
        new, known = ([rank for rank, at in self.clocks.items() if (at in self.compared) == done] for done in (0, 1))
        same = self._as_many if roughly else self._together
        new = [rank for rank in new if self.count[rank] and (not roughly or self.clocks[rank] in self.apart)]
        return next(((rank, peer) for rank in new for peer in known if same(rank, peer)), None)

    def _as_many(self, rank: int, peer: int) -> bool:
        """Whether the ranks have as many collectives in each step of both, and any."""
        own, other = self.by_step[rank], self.by_step[peer]
        both = own.keys() & other.keys()
        return any(own[step] for step in both) and all(own[step] == other[step] for step in both)

    def _together(self, rank: int, peer: int) -> bool:
        """Whether the ranks take part in the same collectives: of a group, or, if nothing names groups, of stages."""
        if self._named(rank, peer) or self._shared(rank, peer):
            return bool(self._shared(rank, peer))
        return bool(self.stages[rank]) and self.stages[rank] == self.stages[peer] and self._as_many(rank, peer)

    def _named(self, *ranks: int) -> bool:
        """Whether the groups of all collectives of the ranks are known."""
        return all(group for rank in ranks for _, group in self.ends[rank])

    def _shared(self, rank: int, peer: int) -> list[tuple[int, str]]:
        """The steps and named groups whose collectives both ranks have, and as many of them."""
        own, other = self.ends[rank], self.ends[peer]
        return [key for key in own if key[1] and key in other and len(own[key]) == len(other[key])]

    def _move(self, rank: int, peer: int, roughly: bool) -> None:
        """Moves the clock of `rank` to that of `peer`."""
        shared = [] if roughly else self._shared(rank, peer)
        apart = [self.ends[rank][key] - self.ends[peer][key] for key in shared]
        if not shared:
            own, other = (_of_steps(self.ends[one]) for one in (rank, peer))
            apart = [own[step] - other[step] for step in own.keys() & other.keys()]
        skew = int(np.median(np.concatenate(apart)))
        if abs(skew) <= SKEW_NS:
            return
        here = [other for other, clock in self.clocks.items() if clock == self.clocks[rank]]
        for moved in here:
            self.ranks[moved].move(-skew)
            self.ends[moved] = {key: ends - skew for key, ends in self.ends[moved].items()}
        way = "ahead" if skew > 0 else "behind"
        unsure = ", which may be those of other stages" if roughly else ", whose groups nothing names"
        unsure *= not shared
        far = f"{'roughly ' * bool(unsure)}{ns_text(abs(skew))} {way} of that of rank {peer}"
        by = plural_text(sum(map(len, apart)), "collective")
        self.notes.append(f"The clock of {ranks_text(here)} is {far}; it was moved by the ends of {by}{unsure}.")

    def _other(self, rank: int) -> str:
        common = self.by_step[rank].keys() & self.by_step[self.first].keys()
        return "other collectives than" if common else "no step in common with"

    def uncompared(self) -> list[str]:
        """Notes on ranks that have collectives, but none to align the clock by."""
        left = [rank for rank, many in self.count.items() if many and self.clocks[rank] not in self.compared]
        unnamed = [rank for rank in left if self._may_share(rank)]
        notes = [
            f"Rank {rank} has {self._other(rank)} rank {self.first}: their clocks were not compared."
            for rank in left
            if rank not in unnamed
        ]
        if unnamed:
            bare = [rank for rank in (self.first, *unnamed) if not self.stages[rank]]
            what = "clock was" if len(unnamed) == 1 else "clocks were"
            notes.append(
                f"Nothing names the stages of {ranks_text(bare)}, which would say whose collectives are the same: on "
                f"{ranks_text(unnamed)}, the {what} not compared with that of rank {self.first}."
            )
        return notes

    def _may_share(self, rank: int) -> bool:
        """Whether the rank may have the first one's collectives: as many, and nothing says that its stages differ."""
        known = self._named(rank, self.first) or (self.stages[rank] and self.stages[self.first])
        return not known and self._as_many(rank, self.first)

    def silent(self) -> list[str]:
        """Notes which ranks, on other hosts than the first one, have no collective to align the clock by."""
        away = [rank for rank, trace in self.ranks.items() if trace.host and self.clocks[rank] not in self.compared]
        silent = [rank for rank in away if self.ranks[self.first].host and not self.count[rank]]
        where = f"On another host than rank {self.first}, and without a collective to tell by: {ranks_text(silent)}."
        return [f"{where} Their clocks were not compared."] if silent else []

    def disjoint(self) -> list[str]:
        """Notes which ranks are never in a step at the same time as the first rank: gaps in the timeline are then not
        waiting."""
        base = _extents(trace for rank, trace in self.ranks.items() if rank == self.first)
        far = [rank for rank, trace in self.ranks.items() if not _meets(_extents([trace]), base)]
        apart = (
            f"At no time in the same step as rank {self.first}: {ranks_text(far)}. Their clocks differ, or they were "
            "recorded one after another; the time between them is no waiting."
        )
        return [apart] if far else []

    def _extents(self, clocks: Collection[str | int | None]) -> _Extents:
        return _extents(trace for rank, trace in self.ranks.items() if self.clocks[rank] in clocks)


def _stages(ranks: Mapping[int, RankTrace]) -> dict[int, frozenset[int]]:
    """Rank -> its stages: each reduces its gradients when its own backwards are done, so ranks of the same stages have
    the same collectives. Empty where nothing names them; without a pipeline all ranks are of stage 0."""
    rows = {rank: np.concatenate([np.empty(0, SPAN), *trace.steps.values()]) for rank, trace in ranks.items()}
    if not any(among(own, P2P).any() for own in rows.values()):
        return dict.fromkeys(rows, frozenset({0}))
    named = {rank: own["stage"][(own["stage"] >= 0) & (own["micro_batch"] >= 0)] for rank, own in rows.items()}
    return {rank: frozenset(stages.tolist()) for rank, stages in named.items()}


def _extents(traces: Iterable[RankTrace]) -> _Extents:
    out: _Extents = {}
    for step, rows in (pair for trace in traces for pair in trace.steps.items()):
        start, end = out.get(step, (1 << 62, -(1 << 62)))
        out[step] = min(start, int(rows["start"].min())), max(end, int(rows["end"].max()))
    return out


def _meets(steps: _Extents, others: _Extents) -> bool:
    """Whether any step that both have overlaps in time; True where they have no step in common."""
    common = [(*steps[step], *others[step]) for step in steps.keys() & others.keys()]
    return not common or any(start < end and other < own for start, own, other, end in common)


def _collective_ends(trace: RankTrace) -> _Ends:
    out: _Ends = {}
    for step, rows in sorted(trace.steps.items()):
        ends = rows["end"][rows["kind"] == Kind.BUCKET]
        named = np.array(trace.groups.get(step, [""] * len(ends)), np.str_)
        out |= {(step, str(group)): np.sort(ends[named == group]) for group in np.unique(named)}
    return out


def _counts(trace: RankTrace) -> dict[int, int]:
    """Step -> number of its collectives."""
    return {step: int((rows["kind"] == Kind.BUCKET).sum()) for step, rows in trace.steps.items()}


def _of_steps(ends: _Ends) -> dict[int, NDArray[np.int64]]:
    """Step -> ends of its collectives of all groups, ascending; without steps that have none."""
    parts: dict[int, list[NDArray[np.int64]]] = {}
    for (step, _), own in ends.items():
        parts.setdefault(step, []).append(own)
    return {step: np.sort(np.concatenate(own)) for step, own in parts.items()}
