"""One rank's torch.profiler trace as SPAN rows of its steps.

On a GPU a span is a kernel, and what it belongs to is read off the host code that launched it: through its correlation
to the launch, and from there to the innermost marker around that moment (`names.marker`). On a CPU a span is an
outermost operation. Neighbours of one kind that follow within 2 us are one span. Collectives run beside computation,
so they are BUCKET spans: what computation does not hide of them is exposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.gaps import LONGEST_NS
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.traces import names
from parallel_core.traces.collect import OPERATION, Collected
from parallel_core.traces.nesting import NONE, innermost, outermost, parents
from parallel_core.traces.talk import behind_norms, carried, from_their_call, talk

JOIN_NS = 2_000
TOP = 20
SEQUENCE = 2_000
"""Names that are kept of a step, to hold two ranks against each other."""
_FORWARD = names.Meaning(Kind.F, LANE_COMPUTE)
MEANING = np.dtype([("kind", "u1"), ("lane", "u1"), ("stage", "<i2"), ("micro_batch", "<i4")])


@dataclass
class RankTrace:
    """`steps[k]` are the SPAN rows of step k; `raw` counts the kernels or operations that they were made of."""

    device: str = "cpu"
    steps: dict[int, NDArray[np.void]] = field(default_factory=dict)
    raw: int = 0
    top: list[dict[str, Any]] = field(default_factory=list)
    """The operations that took longest in all: name, family, count, ns."""
    notes: list[str] = field(default_factory=list)
    stages: int = 0
    micro_batches: int = 0
    """Different ones that annotations name; 0 = none does."""
    counted: list[int] = field(default_factory=list)
    """Steps whose stages and micro-batches messages and order told of (`unnamed`, `known_orders`)."""
    host: str = ""
    """Where it was recorded; '' where the trace does not say."""
    operations: dict[int, list[str]] = field(default_factory=dict)
    """Of each step the names of its first SEQUENCE operators, as the host began them (ATen)."""
    kernels: dict[int, list[str]] = field(default_factory=dict)
    """The same of what the device did; {} without one."""

    @property
    def pause(self) -> int:
        """Longest pause inside one operation. On a CPU an operation is its rank's whole work: pauses are its Python."""
        return JOIN_NS if self.device == "cuda" else LONGEST_NS

    def move(self, ns: int) -> None:
        """Moves every span."""
        for rows in self.steps.values():
            rows["start"] += ns
            rows["end"] += ns


def read(trace: Collected) -> RankTrace:
    """The spans of a collected trace; an empty one has no steps."""
    out = RankTrace("cuda" if len(trace.device) else "cpu")
    work, moments, meanings = (_of_device if len(trace.device) else _of_host)(trace)
    if not len(work):
        out.notes.append("No operation and no kernel was found in it.")
        return out
    out.raw, out.top = len(work), _top(trace.names, work)
    rows = _rows(work, meanings)
    _halve(rows)
    out.stages, out.micro_batches = (len(np.unique(rows[name][rows[name] >= 0])) for name in ("stage", "micro_batch"))
    _into_steps(out, trace, rows, moments)
    host = _outermost(trace.host[trace.host["link"] == OPERATION])
    out.operations = _sequences(trace, host, host["start"], out.steps)
    out.kernels = _sequences(trace, work, moments, out.steps) if len(trace.device) else {}
    return out


def _outermost(host: NDArray[np.void]) -> NDArray[np.void]:
    """Those that no other operation of their thread contains."""
    keep = np.zeros(len(host), np.bool_)
    for thread in np.unique(host["thread"]):
        mine = np.flatnonzero(host["thread"] == thread)
        keep[mine[outermost(host["start"][mine], host["end"][mine])]] = True
    return host[keep]


def _sequences(
    trace: Collected, work: NDArray[np.void], moments: NDArray[np.int64], steps: Mapping[int, Any]
) -> dict[int, list[str]]:
    """The names of `work` (by start) whose moments lie in each step; a trace without marked steps is one."""
    windows = _windows(trace)
    out = {}
    for step in steps:
        low, high = windows.get(step, (-(1 << 62), 1 << 62))
        mine = work["name"][(moments >= low) & (moments < high)][:SEQUENCE].tolist()
        if mine:
            out[step] = [trace.names[i] for i in mine]
    return out


def _meanings(found: list[names.Meaning | None]) -> NDArray[np.void]:
    return np.array([tuple(meaning or _FORWARD) for meaning in found], MEANING)


def _of_device(trace: Collected) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.void]]:
    """Kernels, the moments they were launched at, and what they are."""
    kernels, launches = trace.device, trace.launches[np.argsort(trace.launches["link"], kind="stable")]
    at = np.clip(np.searchsorted(launches["link"], kernels["link"]), 0, max(len(launches) - 1, 0))
    linked = np.zeros(len(kernels), np.bool_)
    if len(launches):
        linked = (launches["link"][at] == kernels["link"]) & (kernels["link"] >= 0)
    moments, threads = kernels["start"].copy(), np.full(len(kernels), NONE)
    moments[linked], threads[linked] = launches["start"][at[linked]], launches["thread"][at[linked]]
    meanings = around(trace, threads, moments)
    own = {i: meaning for i, name in enumerate(trace.names) if (meaning := names.of_kernel(name))}
    for i in np.flatnonzero(np.isin(kernels["name"], list(own))):
        meaning = own[int(kernels["name"][i])]
        sent = meanings[i]["kind"] == Kind.SEND_ACT and meaning.kind is Kind.RECV_ACT
        if not sent:  # SendRecv is one kernel for both: the operation that launched it knows which
            meanings[i]["kind"], meanings[i]["lane"] = meaning.kind, meaning.lane
    return kernels, moments, meanings


def _of_host(trace: Collected) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.void]]:
    """Outermost operations, reads and updates whole; collectives; and what they are."""
    host, known = behind_norms(trace), [names.marker(name) for name in trace.names]
    lane_host = [i for i, meaning in enumerate(known) if meaning and meaning.lane == LANE_HOST]
    said_by = talk(trace)
    done = [names.communication(name) for name, own in zip(trace.names, said_by[0], strict=True) if own]
    for lane in (LANE_P2P, LANE_COLLECTIVE):
        if not any(meaning.lane == lane for meaning in done if meaning):
            # Nothing tells of the messages or sums themselves (shared memory, say): what stands around them does.
            lane_host += [i for i, meaning in enumerate(known) if meaning and meaning.lane == lane]
    whole = np.isin(host["name"], lane_host)
    through = np.array(
        [bool(m) or bool(names.STEP.match(n)) for m, n in zip(known, trace.names, strict=True)], np.bool_
    )
    plain = ((host["link"] == OPERATION) & ~(through | said_by[1])[host["name"]]) | whole
    keep = np.isin(host["name"], np.flatnonzero(said_by[0]))
    for thread in np.unique(host["thread"][plain]):
        mine = np.flatnonzero(plain & (host["thread"] == thread))
        keep[mine[outermost(host["start"][mine], host["end"][mine])]] = True
    work = from_their_call(host, keep, said_by[0], said_by[1] & ~said_by[0])
    # What a library carries out runs beside the thread that it is written under: work there goes on meanwhile.
    meanings = around(trace, work["thread"], work["start"], beside=carried(trace))
    for i, meaning in enumerate(known):
        if i in lane_host or said_by[0][i]:
            said = names.communication(trace.names[i]) or meaning
            chosen = work["name"] == i
            meanings["kind"][chosen], meanings["lane"][chosen] = said.kind, said.lane  # type: ignore[union-attr]
    return work, work["start"], meanings


def around(
    trace: Collected,
    threads: NDArray[np.int64],
    moments: NDArray[np.int64],
    beside: NDArray[np.bool_] | None = None,
) -> NDArray[np.void]:
    """MEANING rows: of the innermost marker around each moment on its thread; where that names no micro-batch, of the
    annotation around it on any thread (a backward runs on a thread of its own while the caller waits). Of the names
    that are `beside` (by index) nothing is told."""
    known = [_around(name) for name in trace.names]
    if beside is not None:
        known = [None if beside[i] else meaning for i, meaning in enumerate(known)]
    host = trace.host[np.array([meaning is not None for meaning in known], np.bool_)[trace.host["name"]]]
    table = _meanings(known)
    out = np.full(len(moments), np.array(tuple(_FORWARD), MEANING))
    for thread in np.unique(threads[threads != NONE]):
        mine, here = host[host["thread"] == thread], np.flatnonzero(threads == thread)
        found = innermost(mine["start"], mine["end"], parents(mine["start"], mine["end"]), moments[here])
        inside = found != NONE
        out[here[inside]] = table[mine["name"][found[inside]]]
    named = host[table["micro_batch"][host["name"]] >= 0]
    found = innermost(named["start"], named["end"], parents(named["start"], named["end"]), moments)
    _annotate(out, found, table[named["name"]])
    return out


def _around(name: str) -> names.Meaning | None:
    """What an event says of the work inside it: of an annotated collective nothing, for that computes, too."""
    own = names.marker(name)
    return names.communication(name) if own is None or own.lane == LANE_COLLECTIVE else own


def _annotate(out: NDArray[np.void], found: NDArray[np.int64], said: NDArray[np.void]) -> None:
    inside = np.flatnonzero(found != NONE)
    annotation = said[found[inside]]
    out["stage"][inside], out["micro_batch"][inside] = annotation["stage"], annotation["micro_batch"]
    halves = np.isin(annotation["kind"], (Kind.B, Kind.W)) & (out["kind"][inside] == Kind.BW)
    # Behind a backward's markers its thread tidies up: that is no forward.
    halves |= np.isin(annotation["kind"], (Kind.BW, Kind.B, Kind.W)) & (out["kind"][inside] == Kind.F)
    out["kind"][inside[halves]] = annotation["kind"][halves]


def _rows(work: NDArray[np.void], meanings: NDArray[np.void]) -> NDArray[np.void]:
    rows = np.zeros(len(work), SPAN)
    for name in MEANING.names or ():
        rows[name] = meanings[name]
    rows["start"], rows["end"] = work["start"], work["end"]
    return rows


def _halve(rows: NDArray[np.void]) -> None:
    """A `B` with a `W` of the same stage and micro-batch is the gradient of the input alone; without, it is both."""
    named = rows["micro_batch"] >= 0
    keys = rows["stage"].astype(np.int64) << 32 | rows["micro_batch"]
    halves = np.isin(keys, keys[named & (rows["kind"] == Kind.W)]) & named & (rows["kind"] == Kind.BW)
    rows["kind"][halves] = Kind.B


def _into_steps(out: RankTrace, trace: Collected, rows: NDArray[np.void], moments: NDArray[np.int64]) -> None:
    windows, pause = _windows(trace), out.pause
    if not windows:
        out.notes.append(
            "No step is marked in it (schedule and step() of the profiler do that): all of it is one step."
        )
        out.steps = {0: _step(rows, int(rows["start"].min()), int(rows["end"].max()), pause)}
        return
    inside = np.zeros(len(rows), np.bool_)
    for number, (start, end) in windows.items():
        mine = (moments >= start) & (moments < end)
        inside |= mine
        if mine.any():
            out.steps[number] = _step(rows[mine], start, max(end, int(rows["end"][mine].max())), pause)
    if not inside.all():
        out.notes.append(f"{int((~inside).sum())} of {len(rows)} operations lie outside of the marked steps.")


def _windows(trace: Collected) -> Mapping[int, tuple[int, int]]:
    """Step -> (start, end) of its annotation; where it stands several times, of the longest."""
    out: dict[int, tuple[int, int]] = {}
    for i, name in enumerate(trace.names):
        if found := names.STEP.match(name):
            marked = trace.host[trace.host["name"] == i]
            if len(marked):
                best = marked[np.argmax(marked["end"] - marked["start"])]
                out[int(found[1])] = (int(best["start"]), int(best["end"]))
    return dict(sorted(out.items()))


def _parted(rows: NDArray[np.void], mine: NDArray[np.void], pause: int) -> NDArray[np.bool_]:
    """Which of `mine` do not go on with the one before: over `pause` ns behind it, or something stands between."""
    reach, starts = np.maximum.accumulate(mine["end"])[:-1], mine["start"][1:]
    begun = np.searchsorted(rows["start"], starts, "left") - np.searchsorted(rows["start"], reach, "left")
    # A message under way beside a named operation is not waited for inside it: what it needs came before it began.
    waited = (LANE_COLLECTIVE,) if mine["micro_batch"][0] >= 0 else (LANE_P2P, LANE_COLLECTIVE)
    talking = rows[np.isin(rows["lane"], waited)]
    ended = np.maximum.accumulate(np.concatenate([[-(1 << 62)], talking["end"]]))
    over = ended[np.searchsorted(talking["start"], starts, "left")] > reach
    apart = starts - reach
    return (apart > pause) | ((apart > JOIN_NS) & ((begun > 0) | over))


def _step(rows: NDArray[np.void], start: int, end: int, pause: int) -> NDArray[np.void]:
    """The step itself, then its rows in order, neighbours joined (`joined`)."""
    step = np.array([(Kind.STEP, LANE_HOST, 0, -1, 0, 0, start, end, 0)], SPAN)
    out = np.concatenate([step, joined(rows, pause)])
    return out[np.argsort(out["start"], kind="stable")]


def joined(rows: NDArray[np.void], pause: int) -> NDArray[np.void]:
    """The rows in order, neighbours of one kind as one; those of a named operation over pauses of up to `pause` ns."""
    rows = rows[np.argsort(rows["start"], kind="stable")]
    parts = [rows[:0]]
    keys = rows[["kind", "lane", "stage", "micro_batch"]]
    for key in np.unique(keys):
        mine = rows[keys == key]
        if int(key["kind"]) in P2P:  # each is one message: how many there are is what tells of a pipeline
            parts.append(mine)
            continue
        first = np.concatenate([[True], _parted(rows, mine, pause if key["micro_batch"] >= 0 else JOIN_NS)])
        whole = mine[first]
        whole["end"] = np.maximum.reduceat(mine["end"], np.flatnonzero(first))
        parts.append(whole)
    out = np.concatenate(parts)
    return out[np.argsort(out["start"], kind="stable")]


def _top(known: list[str], work: NDArray[np.void]) -> list[dict[str, Any]]:
    spent = np.bincount(work["name"], weights=work["end"] - work["start"], minlength=len(known))
    counts = np.bincount(work["name"], minlength=len(known))
    order = np.argsort(-spent, kind="stable")[:TOP]
    return [
        {"name": known[i], "family": names.family(known[i]), "count": int(counts[i]), "ns": int(spent[i])}
        for i in order
        if counts[i]
    ]
