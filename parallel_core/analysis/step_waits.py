"""The shares of every step of a run, without its spans: exact, from a few numbers of each rank.

A rank reduces its spans to what it can tell alone (`reduced`): time in recomputation, in communication that nothing
hides, and in waiting, which is either that, too, or bubble. Which of the two it is depends on when other ranks began:
so the rank keeps when each of its sends, receives and blocking collectives began and ended (WAIT rows, several to a
step; before a collective behind computation also its flight), and all ranks' rows together divide the waiting
(`shares_of`).

The result is that of `breakdown`, whose components and their precedence are used: on equal clocks the nanoseconds are
the same (where nothing flushes, nearly: the sends of the step before are mostly at hand here, see
`waits.awaited_sends`; where they are not, as for a traced step by itself, the bubble of the last steps of a stream is
understated, and their communication overstated). Both functions take many steps at once, because a call costs as much
for one short step as for ten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.rows import by_start
from parallel_core.analysis.sweep import Pieces, Times, sweep
from parallel_core.layout import Layout
from parallel_core.observe.records import STEP_SUM, WAIT
from parallel_core.schedule.ir import COMPUTE, FLIGHT, RECVS, SENDS, Kind

_LAYERS = ("waiting", "recompute", "busy", "waiting", "exposed", "busy", "exposed")
"""What owns an instant, highest precedence first, as in `breakdown`; `busy` is everything that is no share."""
_STRIDE = 1 << 20
"""Distance between the micro-batch ids of two steps that are joined at once and flush; more than a step has."""
_TOGETHER = 1024
"""Most steps that are joined at once: their ids fit 32 bits, and more are no faster."""


class StepWaits(NamedTuple):
    """Some steps of one rank in order: `sums` (STEP_SUM rows), and the WAIT `rows` of each step after those of the one
    before, in order of their start."""

    sums: NDArray[np.void]
    rows: NDArray[np.void]

    @classmethod
    def unpack(cls, blob: bytes, steps: int) -> Self:
        """Reads the blob of a `waits` record. Raises ValueError where it does not hold `steps` steps."""
        size = steps * STEP_SUM.itemsize
        if not 0 <= size <= len(blob) or (len(blob) - size) % WAIT.itemsize:
            raise ValueError(f"{len(blob)} bytes are not the waits of {steps} steps")
        sums, rows = np.frombuffer(blob, STEP_SUM, steps), np.frombuffer(blob, WAIT, -1, size)
        if int(sums["count"].sum()) != len(rows):
            raise ValueError(f"{len(rows)} waits, but the steps have {int(sums['count'].sum())}")
        return cls(sums, rows)

    def pack(self) -> bytes:
        """The blob of a `waits` record."""
        return self.sums.tobytes() + self.rows.tobytes()

    def among(self, chosen: NDArray[np.bool_]) -> StepWaits:
        """The steps where `chosen`."""
        return StepWaits(self.sums[chosen], self.rows[np.repeat(chosen, self.sums["count"])])

    def cut(self, step: int) -> tuple[StepWaits, StepWaits]:
        """The steps up to `step`, and those after it; they are in ascending order."""
        at = int(np.searchsorted(self.sums["step"], step, side="right"))
        rows = int(self.sums["count"][:at].sum())
        return StepWaits(self.sums[:at], self.rows[:rows]), StepWaits(self.sums[at:], self.rows[rows:])

    def parts(self, size: int) -> Iterator[StepWaits]:
        """The steps, `size` at a time."""
        ends = np.concatenate([[0], np.cumsum(self.sums["count"], dtype=np.int64)])
        for at in range(0, len(self.sums), size):
            stop = min(at + size, len(self.sums))
            yield StepWaits(self.sums[at:stop], self.rows[ends[at] : ends[stop]])

    @classmethod
    def chain(cls, parts: Sequence[StepWaits]) -> Self:
        """The steps of all `parts`, at least one, in their order."""
        return cls(np.concatenate([part.sums for part in parts]), np.concatenate([part.rows for part in parts]))


def reduced(spans: NDArray[np.void], kinds: Iterable[Kind], steps: Sequence[int], times: Sequence[float]) -> StepWaits:
    """Reduces the spans of some whole steps of one rank (SPAN rows, each step with its STEP row).

    `kinds`: collectives in which the rank meets others (`waits.blocked_in`); `steps`, `times`: number and end (unix
    seconds) of each step, in order.
    """
    rows, kinds = by_start(spans), tuple(kinds)
    begins, ends = waits.pieces(rows, Kind.STEP)
    received, given = waits.of_kinds(rows, *RECVS), waits.of_kinds(rows, *SENDS)
    standing = waits.stands_from(rows, received)
    layers: list[Pieces] = [
        waits.pieces(rows, *kinds),
        waits.pieces(rows, Kind.R),
        waits.pieces(rows, *COMPUTE, Kind.OPT_STEP, Kind.DATA),
        (standing, received["end"]),
        (waits.stands_from(rows, given), given["end"]),
        waits.pieces(rows, Kind.SETUP),
        waits.pieces(rows, Kind.BUCKET),
    ]
    sums = _sums(layers, begins, ends)
    sums["step"], sums["time"] = steps, times
    met = _met(rows, kinds, standing)
    sums["count"] = np.bincount(_place(begins, met["start"]), minlength=len(begins))
    return StepWaits(sums, met)


def _sums(layers: Sequence[Pieces], begins: Times, ends: Times) -> NDArray[np.void]:
    found = sweep(layers, (int(begins[0]), int(ends[-1])), (*begins.tolist(), *ends.tolist()))
    step = _place(begins, found.starts)
    within = found.starts < ends[step]
    sums = np.zeros(len(begins), STEP_SUM)
    sums["total"] = ends - begins
    for name in ("waiting", "exposed", "recompute"):
        mine = within & found.owned_by(i for i, layer in enumerate(_LAYERS) if layer == name)
        sums[name] = np.bincount(step[mine], weights=found.lengths[mine], minlength=len(begins))
    return sums


def _met(rows: NDArray[np.void], kinds: Collection[Kind], standing: Times) -> NDArray[np.void]:
    """The WAIT rows, with the flights that say when the rank came to a collective; a receive starts when the rank
    stands in it."""
    flights = [FLIGHT[kind] for kind in kinds if kind in FLIGHT]
    chosen = waits.of_kinds(rows, *kinds, *flights, *RECVS, *SENDS)
    out = np.empty(len(chosen), WAIT)
    for name in WAIT.names or ():
        out[name] = chosen[name]
    out["start"][waits.among(out, RECVS)] = standing
    return by_start(out)


def _place(begins: Times, at: Times) -> NDArray[np.intp]:
    """The index of the step in which each instant lies."""
    return np.maximum(np.searchsorted(begins, at, side="right") - 1, 0)


class Shares(NamedTuple):
    """The nanoseconds of some steps, sums over all ranks, each an array with one entry a step."""

    steps: NDArray[np.int32]
    total: Times
    bubble: Times
    communication: Times
    recompute: Times


def common(found: Mapping[int, StepWaits], layout: Layout) -> NDArray[np.int32]:
    """The numbers of the steps that all ranks have, ascending."""
    if any(rank not in found for rank in range(layout.world)):
        return np.empty(0, np.int32)
    return reduce(np.intersect1d, (one.sums["step"] for one in found.values()))


def shares_of(found: Mapping[int, StepWaits], layout: Layout) -> Shares:
    """Divides the steps that all ranks have. Each rank has its steps in ascending order, none of them twice."""
    steps = common(found, layout)
    if not len(steps):
        return Shares(steps, *(np.empty(0, np.int64) for _ in range(4)))
    same = {rank: one.among(np.isin(one.sums["step"], steps)) for rank, one in found.items()}
    names = ("total", "waiting", "exposed", "recompute")
    total, waiting, exposed, recompute = (np.sum([one.sums[name] for one in same.values()], axis=0) for name in names)
    parts = zip(*(one.parts(_TOGETHER) for one in same.values()), strict=True)
    bubble = np.concatenate([_bubble(dict(zip(same, part, strict=True)), layout) for part in parts])
    return Shares(steps, total, bubble, exposed + waiting - bubble, recompute)


def shares_in_turn(found: Mapping[int, Iterator[StepWaits]], layout: Layout) -> Shares:
    """As `shares_of`, for the steps of a whole run: takes the records of each rank only as they are needed, and holds
    those of some steps at a time."""
    parts = [shares_of({}, layout), *_in_turn(found, layout)]
    return Shares(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _in_turn(found: Mapping[int, Iterator[StepWaits]], layout: Layout) -> Iterator[Shares]:
    held: dict[int, list[StepWaits]] = {rank: [] for rank in found}
    while True:
        for rank, parts in held.items():
            count = sum(len(part.sums) for part in parts)
            while count < _TOGETHER and (more := next(found[rank], None)) is not None:
                parts.append(more)
                count += len(more.sums)
        whole = {rank: StepWaits.chain(parts) for rank, parts in held.items() if parts}
        last = [int(one.sums["step"][-1]) for one in whole.values() if len(one.sums)]
        if len(last) < layout.world:
            return
        # A rank has no step up to the last one that it lacks now.
        cut = {rank: one.cut(min(last)) for rank, one in whole.items()}
        yield shares_of({rank: done for rank, (done, _) in cut.items()}, layout)
        held = {rank: [rest] for rank, (_, rest) in cut.items()}


def _bubble(found: Mapping[int, StepWaits], layout: Layout) -> Times:
    """The bubble of each step, summed over all ranks; all have the same steps."""
    count = len(found[0].sums)
    step = {rank: np.repeat(np.arange(count), one.sums["count"]) for rank, one in found.items()}
    rows = {rank: one.rows.copy() for rank, one in found.items()}
    begins = _begins(found[0].sums["step"], layout)
    early = {rank: _sent_before(one, step[rank], begins, layout) for rank, one in found.items()}
    for rank, own in rows.items():
        own["micro_batch"] += begins[step[rank]]
    present = set(np.unique(np.concatenate([own["kind"] for own in rows.values()])).tolist())
    blocking = [kind for kind in waits.BLOCKING if kind in present]
    for rank, kept in _attended(rows, step, layout, blocking, count).items():
        rows[rank], step[rank] = rows[rank][kept], step[rank][kept]
    arrivals = waits.arrivals(rows, layout)
    sent = waits.sends({rank: np.concatenate([own, early[rank]]) for rank, own in rows.items()}, layout)
    bubble = np.zeros(count, np.int64)
    for rank, own in rows.items():
        until = own["start"].copy()
        until[waits.among(own, RECVS)] = waits.received(rank, own, layout, sent).at
        for kind in blocking:
            if causes := arrivals.get((rank, kind)):
                until[own["kind"] == kind] = causes.at
        bubble += _covered(own["start"], np.minimum(until, own["end"]), step[rank], count)
    return bubble


def _begins(steps: NDArray[np.int32], layout: Layout) -> NDArray[np.int32]:
    """What is added to the micro-batch ids of each step, so that a message has one id at both ends, and no other has.

    Where nothing flushes, a message may be sent in a step and received in the next: ids count on from step to step.
    """
    if layout.flushes:
        return np.arange(len(steps), dtype=np.int32) * np.int32(_STRIDE)
    return (steps - steps[0] + 1) * np.int32(layout.micro_batches)


def _sent_before(one: StepWaits, step: NDArray[np.intp], begins: NDArray[np.int32], layout: Layout) -> NDArray[np.void]:
    """What the rank had sent ahead before each step whose predecessor is not here, as in a single traced step."""
    if layout.flushes:
        return one.rows[:0]
    steps = one.sums["step"]
    alone = np.diff(steps, prepend=steps[:1] - 2) != 1
    chosen = waits.among(one.rows, SENDS) & alone[step] & (one.rows["micro_batch"] >= layout.micro_batches)
    early = waits.sent_before(one.rows[chosen], layout.micro_batches, one.sums["total"][step[chosen]])
    early["micro_batch"] += begins[step[chosen]]
    return early


def _attended(
    rows: Mapping[int, NDArray[np.void]],
    step: Mapping[int, NDArray[np.intp]],
    layout: Layout,
    kinds: Iterable[Kind],
    count: int,
) -> dict[int, NDArray[np.bool_]]:
    """Which rows count. Within a step, collectives (of `kinds`) that not all ranks of a group have wait for nobody:
    without them the k-th of all steps is the k-th on every rank."""
    kept = {rank: np.ones(len(own), np.bool_) for rank, own in rows.items()}
    for kind in kinds:
        for group in waits.groups(kind, layout):
            mine = {rank: np.flatnonzero(rows[rank]["kind"] == kind) for rank in group}
            tally = {rank: np.bincount(step[rank][own], minlength=count) for rank, own in mine.items()}
            least = np.min(list(tally.values()), axis=0)
            for rank, own in mine.items():
                number = np.arange(len(own)) - (np.cumsum(tally[rank]) - tally[rank])[step[rank][own]]
                kept[rank][own[number >= least[step[rank][own]]]] = False
    return kept


def _covered(starts: Times, ends: Times, step: NDArray[np.intp], count: int) -> Times:
    """Nanoseconds of each step that the intervals cover; those of a step are in order of their start.

    Each step has a time axis of its own: by the clocks of two hosts, which are compared again between steps, one may
    begin before another ends.
    """
    if not len(starts):
        return np.zeros(count, np.int64)
    begins = starts[np.searchsorted(step, np.arange(count))[step]]
    begins = begins - step * (int((ends - begins).max()) + 1)
    starts, ends = starts - begins, ends - begins
    before = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    lengths = np.maximum(ends - np.maximum(starts, before), 0)
    return np.bincount(step, weights=lengths, minlength=count).astype(np.int64)
