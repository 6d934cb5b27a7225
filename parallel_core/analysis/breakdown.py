"""Where a step went: the spans of every rank -> integer nanoseconds by component, which add up exactly to the step.

Every instant of a rank's step (its span of kind STEP; without one, from its first span to its last) is assigned to
exactly one component, the first of this list that covers it:

1. `bubble`: inside a blocking collective (TP_COLLECTIVE, ALLREDUCE, NORM, ...), before its last participant arrived
   (one behind computation is reached where its TP_FLIGHT, UNSHARD_FLIGHT or BUCKET_FLIGHT begins);
2. `exposed_collective`: the rest of that collective;
3. `recompute`: spans R, which lie inside those of BW;
4. `compute`: F, B, W, BW, PAIR, without the collectives and recomputation inside them; `forward` is its part in F, also
   in the F of a PAIR, all else is `backward`;
5. `optimizer`, 6. `data`: OPT_STEP; DATA;
7. `bubble`: waiting inside a RECV, before the SEND of its peer began;
8. `exposed_p2p`: the rest of that RECV, and waiting inside SENDs (also for a late receiver);
9. `other`: SETUP;
10. `bubble`: a gradient BUCKET in flight that nothing above hides, before its last participant arrived, where that is
   known of an imported trace (a run of ours waits for its buckets in an ALLREDUCE, which is 1. and 2.);
11. `exposed_collective`: the rest of that BUCKET;
12. `other`: what no span covers: the rank was between operations, with no sign that it waited for another rank.

A message that is started, and waited for later, is a span from its start to the end of that wait (gloo in traces of
torch.profiler). Operations that the rank started in between did not depend on it, so waiting counts only after the last
of them; pauses before are `other`.

`waits` determines who waited for whom. A group of one has no collectives: there NORM is only a part of its OPT_STEP. A
RECV whose SEND is not known (`waits.awaited_sends`) counts as exposed_p2p. All spans must use one clock (a host's
monotonic clock).

An `Account` adds what is not part of the sum: when the bubble occurred, and the overlapped communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.sweep import Pieces, Times, sweep
from parallel_core.analysis.waits import Waited
from parallel_core.layout import Layout
from parallel_core.schedule.ir import COMPUTE, FLIGHT, RECVS, SENDS, Kind


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of one rank's step (or a mean) by component.

    `forward` is the part of `compute` in forwards, which is no component of its own; None where it is not known, as in
    what was stored without it.
    """

    compute: int = 0
    recompute: int = 0
    exposed_p2p: int = 0
    exposed_collective: int = 0
    bubble: int = 0
    optimizer: int = 0
    data: int = 0
    other: int = 0
    forward: int | None = field(default=None, kw_only=True)

    @property
    def backward(self) -> int | None:
        """The rest of `compute`; None where `forward` is."""
        return None if self.forward is None else self.compute - self.forward

    @property
    def undivided(self) -> int | None:
        """`compute` where it is not known how much of it is forward, else None."""
        return self.compute if self.forward is None else None

    @property
    def total(self) -> int:
        """The step in nanoseconds."""
        return sum(self.as_dict().values())

    @property
    def communication(self) -> int:
        """Nanoseconds of communication that computation does not hide."""
        return self.exposed_p2p + self.exposed_collective

    def share(self, component: str) -> float:
        """Share of the step taken by `component` (a field, or `communication`), 0 .. 1."""
        return getattr(self, component) / self.total if self.total else 0.0

    def as_dict(self) -> dict[str, int]:
        """Nanoseconds by component."""
        return {name: getattr(self, name) for name in COMPONENTS}  # asdict would copy each number deeply

    def stored(self) -> dict[str, int]:
        """All that is known, as JSON: Breakdown(**stored) is the same again."""
        known = {} if self.forward is None else {"forward": self.forward}
        return {name: int(ns) for name, ns in (self.as_dict() | known).items()}


COMPONENTS = tuple(field.name for field in fields(Breakdown) if field.name != "forward")
"""Names of the components, in the order charts stack them."""
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compute", ("compute",)),
    ("recomputation", ("recompute",)),
    ("communication not hidden", ("exposed_p2p", "exposed_collective")),
    ("optimizer", ("optimizer",)),
    ("bubble", ("bubble",)),
    ("other", ("data", "other")),
)
"""(word, components) of the bars of a step's chart; together they contain every component once."""
DIFFERENCES = (*PARTS[:-1], ("reading data", ("data",)), ("other", ("other",)))
"""The same for what differs between two steps, of which slow data may be the cause."""


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's step in nanoseconds: `parts` add up to it; `warmup`, `steady` and `drain` add up to its bubble.

    Warm-up ends where the rank's first backward starts, drain starts where its last forward has ended (after the
    warm-up): 1F1B with equal stages and free messages has no bubble between the two (Narayanan et al. 2021b, fig. 4).
    `overlapped`: communication hidden by other components, not part of the sum.
    """

    parts: Breakdown = Breakdown()
    warmup: int = 0
    steady: int = 0
    drain: int = 0
    overlapped: int = 0


def accounts(
    spans: Mapping[int, NDArray[np.void]], layout: Layout, met: Mapping[int, waits.Causes] | None = None
) -> dict[int, Account]:
    """Account of one traced step for each global rank in `spans` (SPAN rows, any order); `met` as in `waits.waited`."""
    rows = waits.ordered(spans)
    arrivals, sends = waits.arrivals(rows, layout), waits.awaited_sends(rows, layout)
    out = {}
    for rank, own in rows.items():
        last = {kind: arrivals[rank, kind].at for kind in waits.BLOCKING if (rank, kind) in arrivals}
        last[Kind.BUCKET] = met[rank].at if met and rank in met else waits.pieces(own, Kind.BUCKET)[0]
        out[rank] = _of_rank(own, last, waits.received(rank, own, layout, sends).at)
    return out


def breakdown(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> dict[int, Breakdown]:
    """Breakdown of one traced step for each global rank in `spans` (SPAN rows, any order)."""
    return {rank: account.parts for rank, account in accounts(spans, layout).items()}


def mean(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Mean of each component, rounded down to whole nanoseconds; raises ValueError for no breakdown at all."""
    each = list(breakdowns)
    if not each:
        raise ValueError("the mean of no breakdown is not defined.")
    columns = zip(*(b.as_dict().values() for b in each), strict=True)
    forwards = [b.forward for b in each if b.forward is not None]
    forward = sum(forwards) // len(each) if len(forwards) == len(each) else None
    return Breakdown(*(sum(column) // len(each) for column in columns), forward=forward)


def _of_rank(rows: NDArray[np.void], arrivals: Mapping[Kind, Times], sent: Times) -> Account:
    if not len(rows):
        return Account()
    names, pieces = zip(*_layers(rows, arrivals, sent), strict=True)
    window = waits.window(rows)
    first_backward, last_forward = _turns(rows, window)
    found = sweep(pieces, window, (first_backward, last_forward))
    parts = dict.fromkeys((*COMPONENTS, "forward"), 0)
    for name, ns in zip((*names, "other"), found.owned(), strict=True):
        parts[_COMPONENT_OF.get(name, name)] += ns
    parts["compute"] += parts["forward"]
    idle = found.owned_by(i for i, name in enumerate(names) if name == "bubble")
    early, late = found.starts < first_backward, found.starts >= last_forward
    moving = found.active[[i for i, name in enumerate(names) if name.startswith("exposed") or name == _MOVING]].any(0)
    hiding = found.owned_by(i for i, name in enumerate(names) if name in _HIDING)
    return Account(
        Breakdown(**parts),
        warmup=found.time(idle & early),
        steady=found.time(idle & ~early & ~late),
        drain=found.time(idle & late & ~early),
        overlapped=found.time(moving & hiding),
    )


_HIDING = ("forward", "backward", "weight", "recompute", "optimizer", "data")
_MOVING = "moving"
"""The layer of messages and tensor-parallel collectives in flight that the rank did not wait for."""
_COMPONENT_OF = {"backward": "compute", "weight": "compute", _MOVING: "other"}
"""Layer -> its component, where the names differ."""
_PHASE_OF = {
    "bubble": "waiting",
    "exposed_collective": "communication",
    "exposed_p2p": "communication",
    "data": "other",
    _MOVING: "idle",
}
"""Layer -> its phase, where the names differ."""
PHASES = ("forward", "backward", "weight", "recompute", "communication", "optimizer", "other", "waiting", "idle")
"""What `phases` divides time into."""


def phases(
    rows: NDArray[np.void], waited: Waited | None = None, window: tuple[int, int] | None = None
) -> dict[str, int]:
    """Nanoseconds of one rank by PHASES, which add up to the part of its step in `window` (ns; None = all of it).

    Each instant counts once, by the precedence of a breakdown. `waited` = who waited for whom in these rows (SPAN, any
    order); without it, nothing is `waiting`, and whole messages and collectives are communication. `idle` is what no
    span covers, `other` data and set-up. Rows outside the window may be left out.
    """
    out = dict.fromkeys(PHASES, 0)
    if not len(rows):
        return out
    names, pieces = zip(*phase_layers(rows, waited), strict=True)
    low, high = waits.window(rows) if window is None else _clipped(waits.window(rows), window)
    for name, ns in zip((*names, "idle"), sweep(pieces, (low, high)).owned(), strict=True):
        out[name] += ns
    return out


def phase_layers(rows: NDArray[np.void], waited: Waited | None = None) -> list[tuple[str, Pieces]]:
    """The intervals of one rank as `phases` counts them, each with its phase, highest precedence first.

    A phase may occur several times; what no interval covers is `idle`.
    """
    begun = rows["start"] if waited is None else waited.until
    arrived = {kind: begun[waits.among(rows, (kind,))] for kind in (*waits.BLOCKING, Kind.BUCKET)}
    layers = _layers(rows, arrived, begun[waits.among(rows, RECVS)])
    return [(_PHASE_OF.get(name, name), pieces) for name, pieces in layers]


def _clipped(step: tuple[int, int], window: tuple[int, int]) -> tuple[int, int]:
    low = max(step[0], window[0])
    return low, max(low, min(step[1], window[1]))


def _turns(rows: NDArray[np.void], window: tuple[int, int]) -> tuple[int, int]:
    """(start of the first backward, end of the last forward); without one of them, the end of the step."""
    (backward, _), (_, forward) = waits.pieces(rows, Kind.B, Kind.BW), waits.pieces(rows, Kind.F)
    return int(backward.min(initial=window[1])), int(forward.max(initial=window[0])) if len(forward) else window[1]


def _layers(rows: NDArray[np.void], arrivals: Mapping[Kind, Times], sent: Times) -> list[tuple[str, Pieces]]:
    """The components with the intervals they claim, highest precedence first (see the module's docstring)."""
    collective = [_split(waits.pieces(rows, kind), arrivals[kind]) for kind in waits.BLOCKING if kind in arrivals]
    late, summing = _split(waits.pieces(rows, Kind.BUCKET), arrivals[Kind.BUCKET])
    received, given = waits.of_kinds(rows, *RECVS), waits.of_kinds(rows, *SENDS)
    waiting, coming = _split((waits.stands_from(rows, received), received["end"]), sent)
    leaving = waits.stands_from(rows, given), given["end"]
    _, arriving = _split((received["start"], received["end"]), sent)
    return [
        ("bubble", _join(*(wait for wait, _ in collective))),
        ("exposed_collective", _join(*(rest for _, rest in collective))),
        ("recompute", waits.pieces(rows, Kind.R)),
        ("forward", waits.pieces(rows, Kind.F)),
        ("weight", waits.pieces(rows, Kind.W)),
        ("backward", waits.pieces(rows, *COMPUTE)),  # a PAIR holds the span of its forward, which comes first
        ("optimizer", waits.pieces(rows, Kind.OPT_STEP)),
        ("data", waits.pieces(rows, Kind.DATA)),
        ("bubble", waiting),
        ("exposed_p2p", _join(coming, leaving)),
        ("other", waits.pieces(rows, Kind.SETUP)),
        ("bubble", late),
        ("exposed_collective", summing),
        (_MOVING, _join(arriving, (given["start"], given["end"]), waits.pieces(rows, *FLIGHT.values()))),
    ]


def _none() -> Pieces:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _join(*pieces: Pieces) -> Pieces:
    starts, ends = zip(_none(), *pieces, strict=True)
    return np.concatenate(starts), np.concatenate(ends)


def _split(pieces: Pieces, at: Times) -> tuple[Pieces, Pieces]:
    """Each interval cut in two at `at`, clipped to the interval."""
    starts, ends = pieces
    middle = np.clip(at, starts, np.maximum(starts, ends))
    return (starts, middle), (middle, ends)
