"""A measured step as a cost table: the cost of every operation, so that it can be simulated again with changes.

An operation costs the time from when it waits for nothing any more until the next operation of its rank starts, so host
time between the two is included. Of that, `again` is recomputation and `again_moved` the collectives in it, `moved` is
other communication (messages, collectives inside and after it), `work` the rest. A collective inside an operation moves
data only once its last rank has arrived: waiting for that rank is `work` (or `again`), since faster links would not
shorten it. Simulating the same schedule at these costs gives the measured step. For a tensor-parallel group, which
walks one program together, costs are the mean; with the waits, its ranks work equally long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.rows import durations, ends, last_end, starts
from parallel_core.layout import Layout
from parallel_core.schedule.ir import (
    COMPUTE,
    INSIDE,
    P2P,
    RECVS,
    REPLICA_COLLECTIVES,
    SENDS,
    Kind,
    Op,
    Schedule,
    other_end,
)
from parallel_core.simulate.message_turns import (
    UNKNOWN,
    Carrying,
    Links,
    Turns,
    carried_by_link,
    carrying,
    turns,
    usual_by_link,
)

Key = tuple[Kind, int, int, int]
"""(kind, stage, micro-batch, replica)."""


class Cost(NamedTuple):
    """Nanoseconds of work, communication, recomputation, and communication in the recomputation."""

    work: float = 0
    moved: float = 0
    again: float = 0
    again_moved: float = 0


@dataclass(frozen=True)
class Measured:
    """Costs of one step, in ns. `latency` by SEND, with its wait for the message before it; `begins` by pipeline rank;
    `messages`: those of a message whose way is free, `by_link` by the two places that it goes between, the lower first.

    `norms` by pipeline rank: duration of the global gradient norm after the last rank reached it, a collective as in a
    step's accounts (with the rank's own sums of squares); empty where ranks do not wait for each other before the
    optimizer. `one_host`: whether all ranks are known to be on one.
    """

    ops: Mapping[Key, Cost]
    latency: Mapping[Key, float]
    begins: Sequence[float]
    step: int
    """From the first instant of the step to its last."""
    norms: Sequence[float] = ()
    messages: Carrying = UNKNOWN
    by_link: Mapping[tuple[int, int], Carrying] = field(default_factory=lambda: MappingProxyType({}))
    one_host: bool = False

    @property
    def norm(self) -> bool:
        """Whether all ranks wait for each other before the optimizer."""
        return bool(self.norms)

    def median(self, kind: Kind, stage: int | None = None) -> Cost | None:
        """Median of all operations of this kind (on `stage`), component by component; None without any."""
        found = self._of(kind, stage)
        return Cost(*np.median(found, axis=0).tolist()) if found else None

    def mean(self, kind: Kind) -> Cost | None:
        """Mean of all operations of this kind; None without any."""
        found = self._of(kind, None)
        return Cost(*np.mean(found, axis=0).tolist()) if found else None

    def _of(self, kind: Kind, stage: int | None) -> list[Cost]:
        return [cost for (k, s, _, _), cost in self.ops.items() if k is kind and stage in (None, s)]


def key(op: Op) -> Key:
    """What names the operation within its step."""
    return op.kind, op.stage, op.micro_batch, op.replica


def measure(
    schedule: Schedule, spans: Mapping[int, NDArray[np.void]], layout: Layout, one_host: bool = False
) -> Measured:
    """Costs of the step in `spans` (by global rank). `schedule`: the lowered schedule that its ranks walked.

    Raises ValueError where a rank or an operation is missing, or nothing takes time: such a step cannot be replayed.
    """
    rows = waits.ordered(spans)
    if set(rows) != set(range(layout.world)) or not all(map(len, rows.values())):
        raise ValueError("the spans of this step are not whole: a rank is missing.")
    zero = min(int(own["start"].min()) for own in rows.values())
    end = last_end(rows)
    if end <= zero:
        raise ValueError("the spans of this step have no length.")
    reader = _Reader(rows, layout, zero)
    every = [reader.read(rank, schedule) for rank in sorted(rows)]
    parts: dict[int, list[_Part]] = {}
    for rank, part in enumerate(every):
        parts.setdefault(layout.pipeline_rank(rank), []).append(part)
    ops: dict[Key, Cost] = {}
    latency: dict[Key, float] = {}
    for own in parts.values():
        ops |= {k: Cost(*np.mean([part.ops[k] for part in own], axis=0).tolist()) for k in own[0].ops}
        latency |= {k: float(np.mean([part.latency[k] for part in own])) for k in own[0].latency}
    begins, norms = (
        [float(np.mean([getattr(part, name) for part in parts[q]])) for q in range(schedule.pipeline_ranks)]
        for name in ("begin", "norm")
    )
    meet = layout.world > 1 and any((own["kind"] == Kind.NORM).any() for own in rows.values())
    messages = carrying(part.turns for part in every)
    by_link = {
        divmod(link, len(layout.replicas)): found
        for link, found in carried_by_link((part.turns, part.links) for part in every).items()
    }
    return Measured(ops, latency, begins, end - zero, norms if meet else (), messages, by_link, one_host)


class _Part(NamedTuple):
    """Costs of one global rank, in ns."""

    ops: dict[Key, Cost]
    latency: dict[Key, float]
    begin: int
    norm: int
    turns: Turns
    links: Links


class _Reader:
    """The spans of a step with matched messages and collectives; reads one rank at a time."""

    def __init__(self, rows: dict[int, NDArray[np.void]], layout: Layout, zero: int) -> None:
        self._rows, self._layout, self._zero = rows, layout, zero
        self._arrivals, sends = waits.arrivals(rows, layout), waits.sends(rows, layout)
        self._sent = {rank: waits.received(rank, own, layout, sends) for rank, own in rows.items()}
        self._links = {rank: self._between(rank, one.ranks) for rank, one in self._sent.items()}
        self._usual = usual_by_link(rows, self._sent, self._links)

    def _between(self, rank: int, senders: NDArray[np.int64]) -> Links:
        """A number for the two places that each message goes between: the lower one times their count, and the other;
        of one from nowhere its own twice."""
        places = np.array([self._layout.coords(one).place for one in range(self._layout.world)], np.int64)
        here, there = places[rank], np.where(senders >= 0, places[senders], places[rank])
        return np.asarray(np.minimum(here, there) * len(self._layout.replicas) + np.maximum(here, there), np.int64)

    def read(self, rank: int, schedule: Schedule) -> _Part:
        own, q = self._rows[rank], self._layout.pipeline_rank(rank)
        ops = {(op.kind, op.stage, op.micro_batch): op for op in schedule.programs[q]}
        names = list(zip(own["kind"].tolist(), own["stage"].tolist(), own["micro_batch"].tolist(), strict=True))
        chosen = np.array([i for i, name in enumerate(names) if name in ops], np.int64)
        if len(chosen) != len(ops):
            raise ValueError(f"the spans of this step are not whole: rank {rank} kept {len(chosen)} of {len(ops)}.")
        ready, latency, taken = self._ready(rank, own)
        norm = own[own["kind"] == Kind.NORM]
        # Nothing is waited for after the norm, so the rest of the step belongs to the last operation.
        last_end = own["end"].max() if len(norm) else own["end"][chosen[-1]]
        follows = _follows(own[chosen], last_end)
        took = 0
        if len(norm) and (rank, Kind.NORM) in self._arrivals:
            took = self._cut_at_norm(own, chosen, ready, follows, norm, int(self._arrivals[rank, Kind.NORM].at[0]))
        moves, rebuilds = ends(own) - ready, _recomputed(own)
        moved = self._inside(own, chosen, np.where(rebuilds, 0, moves), INSIDE)
        again = self._inside(own, chosen, durations(own), (Kind.R,))
        again_moved = self._inside(own, chosen, np.where(rebuilds, moves, 0), INSIDE)
        costs, found = {}, {}
        for place, i in enumerate(chosen.tolist()):
            op, busy = ops[names[i]], max(0, int(follows[place] - ready[i]))
            costs[key(op)] = _split(op.kind, busy, moved.get(i, 0), again.get(i, 0), again_moved.get(i, 0))
            if op.kind in RECVS:
                found[(*other_end(op), op.replica)] = latency[i]
        return _Part(costs, found, int(own["start"][chosen[0]]) - self._zero, took, taken, self._links[rank])

    def _cut_at_norm(
        self,
        own: NDArray[np.void],
        chosen: NDArray[np.int64],
        ready: NDArray[np.int64],
        follows: NDArray[np.int64],
        norm: NDArray[np.void],
        last: int,
    ) -> int:
        """Duration of the NORM after `last`, when the last rank reached it. All ranks meet before the first OPT_STEP:
        time before the NORM belongs to the operation before it."""
        steps = np.flatnonzero(own["kind"][chosen] == Kind.OPT_STEP)
        if not len(steps):
            return 0
        first, final = steps[0], steps[-1]
        if first:
            follows[first - 1] = norm["start"][0]
        ready[chosen[first:final]] = follows[first:final]
        met = min(max(last, int(norm["start"][0])), int(follows[final]))
        ready[chosen[final]] = min(max(met, int(norm["end"][0])), int(follows[final]))
        return int(ready[chosen[final]]) - met

    def _ready(self, rank: int, own: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.float64], Turns]:
        """For each row the time from which it waits for nothing any more; for each RECV the latency of its message;
        the turns of these messages."""
        begun, over = starts(own), ends(own)
        ready, latency = begun.copy(), np.zeros(len(own))
        for kind in REPLICA_COLLECTIVES | INSIDE:
            if (rank, kind) in self._arrivals:
                here = own["kind"] == kind
                ready[here] = np.clip(self._arrivals[rank, kind].at, begun[here], over[here])
        here = np.isin(own["kind"], [int(kind) for kind in RECVS])
        usual = np.array([self._usual[link] for link in self._links[rank].tolist()], np.float64)
        taken = turns(own[here], self._sent[rank], usual)
        latency[here] = taken.arrival - self._sent[rank].at
        ready[here] = np.maximum(begun[here], taken.arrival.astype(np.int64))
        return ready, latency, taken

    def _inside(
        self, own: NDArray[np.void], chosen: NDArray[np.int64], took: NDArray[np.int64], kinds: Collection[Kind]
    ) -> dict[int, int]:
        """Sum of `took`, which has a value for each row, over the child spans of these kinds, by the row of the compute
        span among the `chosen` that contains them: of a PAIR, not its halves."""
        holders = chosen[waits.among(own[chosen], COMPUTE)]
        inner = waits.among(own, kinds)
        out: dict[int, int] = {}
        if len(holders) and inner.any():
            at = holders[np.maximum(np.searchsorted(starts(own)[holders], starts(own)[inner], side="right") - 1, 0)]
            for i, ns in zip(at.tolist(), took[inner].tolist(), strict=True):
                out[i] = out.get(i, 0) + ns
        return out


def _follows(rows: NDArray[np.void], last_end: int) -> NDArray[np.int64]:
    """Until when each operation of a program keeps its rank: the next one's start, `last_end` after the last.

    A SEND within a PAIR, which goes on after it (`engine.executor`), ends by itself; its time is not the PAIR's.
    """
    follows, pairs = ends(rows).copy(), np.flatnonzero(rows["kind"] == Kind.PAIR)
    before = np.searchsorted(pairs, np.arange(len(rows))) - 1
    inside = np.flatnonzero(waits.among(rows, SENDS) & (before >= 0))
    inside = inside[starts(rows)[inside] < ends(rows)[pairs[before[inside]]]]
    outside = np.delete(np.arange(len(rows)), inside)
    follows[outside] = np.append(starts(rows)[outside[1:]], last_end)
    np.subtract.at(follows, pairs[before[inside]], durations(rows)[inside])
    return follows


def _recomputed(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which rows begin within a recomputation."""
    again = waits.of_kinds(rows, Kind.R)
    until = np.append(0, ends(again))  # 0 before the first
    return starts(rows) < until[np.searchsorted(starts(again), starts(rows), side="right")]


def _split(kind: Kind, took: int, moved: int, again: int, again_moved: int) -> Cost:
    """The cost of an operation that `took` so long; `again`: its recomputation with the collectives in it."""
    if kind in P2P or kind in REPLICA_COLLECTIVES:
        return Cost(moved=took)
    moved = min(moved, took)
    again = min(again, took - moved)
    again_moved = min(again_moved, again)
    return Cost(took - moved - again, moved, again - again_moved, again_moved)
