"""Aligns the clocks of the hosts of a job by the ends of its collectives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.quantities import few_text, plural_text
from parallel_core.analysis.waits import among
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.traces.kineto import RankTrace

SKEW_NS = 500_000
"""Clock differences up to this many ns are not corrected."""
_Extents = dict[int, tuple[int, int]]
"""Step -> its begin and end."""


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
        self.first = min((rank for rank, own in self.ends.items() if len(own)), default=min(ranks, default=0))
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
        pairs = (
            (rank, peer)
            for rank in new
            if len(self.ends[rank]) and (self.clocks[rank] in self.apart if roughly else self.stages[rank])
            for peer in known
            if roughly or self.stages[rank] == self.stages[peer]
        )
        return next(((rank, peer) for rank, peer in pairs if len(self.ends[rank]) == len(self.ends[peer])), None)

    def _move(self, rank: int, peer: int, roughly: bool) -> None:
        """Moves the clock of `rank` to that of `peer`."""
        skew = int(np.median(self.ends[rank] - self.ends[peer]))
        if abs(skew) <= SKEW_NS:
            return
        here = [other for other, clock in self.clocks.items() if clock == self.clocks[rank]]
        for moved in here:
            self.ranks[moved].move(-skew)
            self.ends[moved] -= skew
        way = "ahead" if skew > 0 else "behind"
        far = f"{'roughly ' * roughly}{abs(skew) / 1e6:.3g} ms {way} of that of rank {peer}"
        by = plural_text(len(self.ends[rank]), "collective")
        other = ", which may be those of other stages" * roughly
        self.notes.append(f"The clock of {_called(here)} is {far}; it was moved by the ends of {by}{other}.")

    def uncompared(self) -> list[str]:
        """Notes on ranks that have collectives, but none to align the clock by."""
        left = [rank for rank, own in self.ends.items() if len(own) and self.clocks[rank] not in self.compared]
        unnamed = [rank for rank in left if self._may_share(rank)]
        notes = [
            f"Rank {rank} has other collectives than rank {self.first}: their clocks were not compared."
            for rank in left
            if rank not in unnamed
        ]
        if unnamed:
            bare = [rank for rank in (self.first, *unnamed) if not self.stages[rank]]
            what = "clock was" if len(unnamed) == 1 else "clocks were"
            notes.append(
                f"Nothing names the stages of {_called(bare)}, which would say whose collectives are the same: on "
                f"{_called(unnamed)}, the {what} not compared with that of rank {self.first}."
            )
        return notes

    def _may_share(self, rank: int) -> bool:
        """Whether the rank may have the first one's collectives: as many, and nothing says that its stages differ."""
        known = self.stages[rank] and self.stages[self.first]
        return not known and len(self.ends[rank]) == len(self.ends[self.first])

    def silent(self) -> list[str]:
        """Notes which ranks, on other hosts than the first one, have no collective to align the clock by."""
        away = [rank for rank, trace in self.ranks.items() if trace.host and self.clocks[rank] not in self.compared]
        silent = [rank for rank in away if self.ranks[self.first].host and not len(self.ends[rank])]
        where = f"On another host than rank {self.first}, and without a collective to tell by: {few_text(silent)}."
        return [f"{where} Their clocks were not compared."] if silent else []

    def disjoint(self) -> list[str]:
        """Notes which ranks are never in a step at the same time as the first rank: gaps in the timeline are then not
        waiting."""
        base = _extents(trace for rank, trace in self.ranks.items() if rank == self.first)
        far = [rank for rank, trace in self.ranks.items() if not _meets(_extents([trace]), base)]
        apart = (
            f"At no time in the same step as rank {self.first}: {few_text(far)}. Their clocks differ, or they were "
            "recorded one after another; the time between them is no waiting."
        )
        return [apart] if far else []

    def _extents(self, clocks: Collection[str | int | None]) -> _Extents:
        return _extents(trace for rank, trace in self.ranks.items() if self.clocks[rank] in clocks)


def _called(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {few_text(ranks)}"


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


def _collective_ends(trace: RankTrace) -> NDArray[np.int64]:
    rows = [rows["end"][rows["kind"] == Kind.BUCKET] for _, rows in sorted(trace.steps.items())]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)
