"""Where a step went: the spans of every rank -> integer nanoseconds by component, adding up exactly to the step.

Every instant of a rank's step (its span of kind STEP; without one, from its first span to its last) is given to
exactly one component, the first of this list that covers it:

1. `bubble`: inside a blocking collective (TP_COLLECTIVE, ALLREDUCE, NORM, ...), before its last participant came;
2. `exposed_collective`: the rest of that collective;
3. `recompute`: spans R, which lie inside those of BW;
4. `compute`: F, B, W, BW, without the collectives and recomputation inside them;
5. `optimizer`, 6. `data`: OPT_STEP; DATA;
7. `bubble`: inside a RECV, before the SEND of its peer began;
8. `exposed_p2p`: the rest of that RECV, and SENDs (a send whose receiver is late counts here, too);
9. `other`: SETUP;
10. `exposed_collective`: a gradient BUCKET in flight that nothing above hides;
11. `other`: what no span covers: the rank was between operations, and nothing says that it waited for another rank.

The k-th collective of a kind on one rank is the k-th on every rank of its group: the tensor group (TP_COLLECTIVE), the
replicas of the stage (ALLREDUCE and the like), all ranks (NORM). A group of one has no collectives: there NORM is only
the part of OPT_STEP that it stands in. A RECV is matched by stage, micro-batch and tensor
coordinate; one without its SEND among the spans counts as exposed_p2p. All clocks must be one (a host's monotonic).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from parallel_core.layout import Layout
from parallel_core.schedule.ir import COMPUTE, REPLICA_COLLECTIVES, SENDS, Kind

Times = NDArray[np.int64]
Pieces = tuple[Times, Times]
"""Starts and ends of intervals, any order, overlaps allowed."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of one rank's step (or a mean) by component."""

    compute: int = 0
    recompute: int = 0
    exposed_p2p: int = 0
    exposed_collective: int = 0
    bubble: int = 0
    optimizer: int = 0
    data: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """The step, in nanoseconds."""
        return sum(self.as_dict().values())

    @property
    def communication(self) -> int:
        """Communication that computation does not hide."""
        return self.exposed_p2p + self.exposed_collective

    def share(self, component: str) -> float:
        """Part of the step that `component` (a field, or `communication`) takes, 0 .. 1."""
        return getattr(self, component) / self.total if self.total else 0.0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COMPONENTS}  # asdict would copy each number deeply


COMPONENTS = tuple(field.name for field in fields(Breakdown))
"""Names of the components, in the order charts stack them."""


def breakdown(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[int, Breakdown]:
    """Breakdown of one traced step for each global rank in `spans` (SPAN rows, any order)."""
    rows = {rank: table[np.argsort(table["start"], kind="stable")] for rank, table in spans.items()}
    arrivals = _last_arrivals(rows, layout)
    sends = _send_starts(rows, layout)
    return {rank: _of_rank(rank, rows[rank], layout, arrivals, sends) for rank in rows}


def mean(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Mean of each component, rounded down to whole nanoseconds; raises ValueError for no breakdown at all."""
    table = [list(b.as_dict().values()) for b in breakdowns]
    if not table:
        raise ValueError("the mean of no breakdown is not defined.")
    return Breakdown(*(sum(column) // len(table) for column in zip(*table, strict=True)))


def _of_rank(
    rank: int,
    rows: NDArray[np.void],
    layout: Layout,
    arrivals: Mapping[tuple[int, Kind], Times],
    sends: Mapping[int, tuple[Times, Times]],
) -> Breakdown:
    """Gives each layer what it covers beyond all layers before it, so that the parts add up by construction."""
    if not len(rows):
        return Breakdown()
    window = _window(rows)
    covered = _none()
    before = 0
    parts = dict.fromkeys(COMPONENTS, 0)
    for component, pieces in _layers(rank, rows, layout, arrivals, sends):
        covered = _join(covered, _clip(pieces, window))
        now = _measure(covered)
        parts[component] += now - before
        before = now
    parts["other"] += window[1] - window[0] - before
    return Breakdown(**parts)


def _layers(
    rank: int,
    rows: NDArray[np.void],
    layout: Layout,
    arrivals: Mapping[tuple[int, Kind], Times],
    sends: Mapping[int, tuple[Times, Times]],
) -> list[tuple[str, Pieces]]:
    """The components with the intervals that they claim, first claim first (the list of the module's docstring)."""
    collective = [_split(_of(rows, kind), arrivals[rank, kind]) for kind in _BLOCKING if (rank, kind) in arrivals]
    waiting, moving = _split(_of(rows, Kind.RECV_ACT, Kind.RECV_GRAD), _sent_at(rank, rows, layout, sends))
    return [
        ("bubble", _join(*(wait for wait, _ in collective))),
        ("exposed_collective", _join(*(rest for _, rest in collective))),
        ("recompute", _of(rows, Kind.R)),
        ("compute", _of(rows, *COMPUTE)),
        ("optimizer", _of(rows, Kind.OPT_STEP)),
        ("data", _of(rows, Kind.DATA)),
        ("bubble", waiting),
        ("exposed_p2p", _join(moving, _of(rows, *SENDS))),
        ("other", _of(rows, Kind.SETUP)),
        ("exposed_collective", _of(rows, Kind.BUCKET)),
    ]


_BLOCKING = (Kind.TP_COLLECTIVE, *sorted(REPLICA_COLLECTIVES), Kind.NORM)


def _last_arrivals(rows: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[tuple[int, Kind], Times]:
    """For (rank, kind): the instant at which the last participant came to each of the rank's collectives."""
    out: dict[tuple[int, Kind], Times] = {}
    for kind in _BLOCKING:
        for group in _groups(kind, layout):
            if len(group) == 1:
                continue
            starts = {rank: rows[rank]["start"][rows[rank]["kind"] == kind] for rank in group if rank in rows}
            common = min(map(len, starts.values()), default=0)
            last = np.max([own[:common] for own in starts.values()], axis=0) if common else _none()[0]
            out |= {(rank, kind): np.concatenate([last, own[common:]]) for rank, own in starts.items()}
    return out


def _groups(kind: Kind, layout: Layout) -> Sequence[Sequence[int]]:
    if kind is Kind.TP_COLLECTIVE:
        return layout.tensor_groups()
    return [range(layout.world)] if kind is Kind.NORM else layout.data_groups()


def _send_starts(rows: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[int, tuple[Times, Times]]:
    """For each tensor coordinate: sorted keys of the messages sent there, and when each send began."""
    found: dict[int, list[tuple[Times, Times]]] = {}
    for rank, table in rows.items():
        own = table[np.isin(table["kind"], [int(kind) for kind in SENDS])]
        found.setdefault(layout.coords(rank).tensor, []).append((_message(own, sending=True), own["start"]))
    out = {}
    for tensor, parts in found.items():
        keys = np.concatenate([keys for keys, _ in parts])
        order = np.argsort(keys, kind="stable")
        out[tensor] = (keys[order], np.concatenate([starts for _, starts in parts])[order])
    return out


def _sent_at(rank: int, rows: NDArray[np.void], layout: Layout, sends: Mapping[int, tuple[Times, Times]]) -> Times:
    """When the send of each of the rank's receives began; the receive's own start where that is not known."""
    received = rows[np.isin(rows["kind"], (int(Kind.RECV_ACT), int(Kind.RECV_GRAD)))]
    keys, starts = sends[layout.coords(rank).tensor]
    if not len(keys):
        return received["start"]
    wanted = _message(received, sending=False)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, starts[at], received["start"])


def _message(rows: NDArray[np.void], sending: bool) -> Times:
    """One integer that names a message the same way at both ends: direction, receiving stage, micro-batch."""
    kind, stage = rows["kind"].astype(np.int64), rows["stage"].astype(np.int64)
    forward = (kind == Kind.SEND_ACT) | (kind == Kind.RECV_ACT)
    target = stage + np.where(forward, 1, -1) * sending
    return (forward.astype(np.int64) << 60) + ((target + 1) << 32) + rows["micro_batch"]


def _window(rows: NDArray[np.void]) -> tuple[int, int]:
    step = rows[rows["kind"] == Kind.STEP]
    bounds = step if len(step) else rows
    return int(bounds["start"].min()), int(bounds["end"].max())


def _of(rows: NDArray[np.void], *kinds: Kind) -> Pieces:
    own = rows[np.isin(rows["kind"], [int(kind) for kind in kinds])]
    return own["start"], own["end"]


def _none() -> Pieces:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _join(*pieces: Pieces) -> Pieces:
    starts, ends = zip(_none(), *pieces, strict=True)
    return np.concatenate(starts), np.concatenate(ends)


def _split(pieces: Pieces, at: Times) -> tuple[Pieces, Pieces]:
    """Each interval cut in two at its instant `at`, which is first moved into it."""
    starts, ends = pieces
    middle = np.clip(at, starts, np.maximum(starts, ends))
    return (starts, middle), (middle, ends)


def _clip(pieces: Pieces, window: tuple[int, int]) -> Pieces:
    return np.clip(pieces[0], *window), np.clip(pieces[1], *window)


def _measure(pieces: Pieces) -> int:
    """Length of the union of the intervals."""
    starts, ends = pieces
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    covered_to = np.concatenate([starts[:1], reach[:-1]])
    return int(np.maximum(reach - np.maximum(starts, covered_to), 0).sum())
