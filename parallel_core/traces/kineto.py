"""Converts one rank's torch.profiler trace to SPAN rows of its steps.

On a GPU a span is a kernel, and its meaning is that of the host code which launched it: found by the correlation id
of the launch, and from there the innermost marker around that moment (`names.marker`). Reads of batches by the host are
added, from when the device began the step and where nothing runs on it, so only waiting for them counts. On a CPU a
span is an outermost operation. Adjacent spans of one kind with gaps of at most 2 us are merged. Collectives overlap
with computation, so they are BUCKET spans: the part not hidden by computation is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.gaps import LONGEST_NS
from parallel_core.analysis.quantities import count_text, plural_text
from parallel_core.analysis.rows import by_start, durations
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_HOST, LANE_P2P
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.traces import device_rows, names
from parallel_core.traces.collect import OPERATION, Collected
from parallel_core.traces.meanings import of_device, of_graphs, of_host, of_no_operation
from parallel_core.traces.nesting import crossing, outermost_of
from parallel_core.traces.windows import EVER, Moments, Windows, marked, windows

JOIN_NS = 2_000
TOP = 20
_COUNTED = {*P2P, Kind.BUCKET}
"""Kinds never merged: pipelines are recognized, and collectives of two ranks matched, by the number of these spans."""
SEQUENCE = 2_000
"""Names that are kept per step, to compare two ranks."""
_UNMARKED = "No step is marked in it (schedule and step() of the profiler do that)"


@dataclass
class RankTrace:
    """The trace of one rank. `steps[k]`: SPAN rows of step k; `raw`: number of kernels or operations that they were
    made of."""

    device: str = "cpu"
    steps: dict[int, NDArray[np.void]] = field(default_factory=dict)
    raw: int = 0
    top: list[dict[str, Any]] = field(default_factory=list)
    """The operations with the largest total time: name, family, count, ns."""
    notes: list[str] = field(default_factory=list)
    stages: int = 0
    micro_batches: int = 0
    """Like `stages` the number of different ones in annotations; 0 = none."""
    counted: list[int] = field(default_factory=list)
    """Steps with stages and micro-batches inferred from messages and order (`inferred_pipeline`, `known_orders`)."""
    windows: Windows = field(default_factory=dict)
    """Step -> its begin and end on the host; {} where steps are not recognizable."""
    host: str = ""
    """Name of the host; '' where the trace does not contain it."""
    files: int = 1
    """Number of files that it was read from."""
    world: int = 0
    """Number of the job's ranks; 0 where the trace does not contain it."""
    operations: dict[int, list[str]] = field(default_factory=dict)
    """Step -> names of its first SEQUENCE operators (ATen), in the order in which the host started them."""
    kernels: dict[int, list[str]] = field(default_factory=dict)
    """The same for device kernels, as the host launched them; {} without a GPU. Streams run beside each other, so the
    order in which kernels begin differs between ranks that do the same."""
    begun: dict[int, dict[str, int]] = field(default_factory=dict)
    """Step -> how many `operators` and `kernels` it has in all."""
    groups: dict[int, list[str]] = field(default_factory=dict)
    """Step -> process group of each of its BUCKET spans, by start, '' where nothing names it; {} if none is named."""
    partial: bool = False
    """Whether some of the file could not be read."""

    @property
    def pause(self) -> int:
        """Longest gap in ns within one operation. On a CPU the gaps within an operation are the Python code of the same
        rank."""
        return JOIN_NS if self.device == "cuda" else LONGEST_NS

    def move(self, ns: int) -> None:
        """Shifts every span by `ns`."""
        for rows in self.steps.values():
            rows["start"] += ns
            rows["end"] += ns


def read(trace: Collected) -> RankTrace:
    """Converts a collected trace; an empty one has no steps."""
    out = RankTrace("cuda" if len(trace.device) else "cpu")
    work, moments, meanings = (of_device if len(trace.device) else of_host)(trace)
    _note_kernels(out, trace, meanings)
    if not len(work):
        out.notes.append(
            "No operation and no kernel was found in it: it takes what torch.profiler records. A timeline that an "
            "older version exported here has neither, and no layout: export it once more from the page of its run."
        )
        return out
    out.raw, out.top = len(work), _top(trace.names, work)
    rows = _rows(work, meanings)
    _split_backwards(rows)
    out.stages, out.micro_batches = (len(np.unique(rows[name][rows[name] >= 0])) for name in ("stage", "micro_batch"))
    out.windows = windows(trace)
    cut = device_rows.beside_kernels(trace, rows, moments) if len(trace.device) else (rows, moments)
    _into_steps(out, trace, *cut)
    if crossed := crossing(trace.host[trace.host["link"] >= OPERATION], JOIN_NS):
        out.notes.append(
            f"Operations that overlap another one of their thread without lying in it: {crossed}. Time that they share "
            "is counted once."
        )
    host = trace.host[outermost_of(trace.host, trace.host["link"] >= OPERATION)]
    out.operations = _sequences("operators", trace, host, host["start"], out)
    out.kernels = _sequences("kernels", trace, work, moments, out) if len(trace.device) else {}
    out.groups = _groups(trace, work, moments, meanings["kind"] == Kind.BUCKET, out)
    return out


def _note_kernels(out: RankTrace, trace: Collected, meanings: NDArray[np.void]) -> None:
    """Notes kernels that are missing, and those of which nothing is known."""
    if len(trace.device):
        if graphed := of_graphs(trace, meanings):
            out.notes.append(
                f"{count_text(graphed)} of {plural_text(len(trace.device), 'kernel')} were launched by CUDA graphs, "
                "whole: nothing tells forward, backward and update apart in them, so all of it is drawn as forward."
            )
        elif unknown := of_no_operation(trace, meanings):
            out.notes.append(
                "It has kernels but no operations of the host (activity CPU of torch.profiler): forward and backward "
                f"are not told apart, and {plural_text(unknown, 'kernel')} are drawn as forward."
            )
        return
    asked = np.array([bool(names.LAUNCH.search(name)) for name in trace.names], np.bool_)[trace.launches["name"]]
    if asked.any():
        out.partial = True
        out.notes.append(
            f"It launches kernels ({count_text(int(asked.sum()))} times), but has none: what its GPU did is missing, "
            "and what its host did is shown instead."
        )


def _groups(
    trace: Collected,
    work: NDArray[np.void],
    moments: NDArray[np.int64],
    meets: NDArray[np.bool_],
    out: RankTrace,
) -> dict[int, list[str]]:
    """For each step the process groups of its collectives (`meets`), by start; {} if none is named."""
    named = [trace.groups[i] for i in work["name"][meets].tolist()]
    if not any(named):
        return {}
    when = Moments(moments[meets])
    return {step: [named[i] for i in when.between(*out.windows.get(step, EVER)).tolist()] for step in out.steps}


def _sequences(
    level: str, trace: Collected, work: NDArray[np.void], moments: NDArray[np.int64], out: RankTrace
) -> dict[int, list[str]]:
    """For each step the names of `work` begun at `moments` in it, in that order; a trace without marked steps is one
    step. Counts them in `out.begun`."""
    when, found = Moments(moments), {}
    for step in out.steps:
        mine = when.between(*out.windows.get(step, EVER))
        out.begun.setdefault(step, {})[level] = len(mine)
        first = mine[np.argsort(moments[mine], kind="stable")][:SEQUENCE]
        if len(first):
            found[step] = [trace.names[i] for i in work["name"][first].tolist()]
    return found


def _rows(work: NDArray[np.void], meanings: NDArray[np.void]) -> NDArray[np.void]:
    rows = np.zeros(len(work), SPAN)
    for name in ("kind", "lane", "stage", "micro_batch"):
        rows[name] = meanings[name]
    rows["start"], rows["end"] = work["start"], work["end"]
    return rows


def _split_backwards(rows: NDArray[np.void]) -> None:
    """Distinguishes B from BW: a backward with a W of the same stage and micro-batch is only the gradient of the input.

    The first stage needs no input gradient: where it has no such operation, its W is the whole backward.
    """
    named = rows["micro_batch"] >= 0
    keys = rows["stage"].astype(np.int64) << 32 | rows["micro_batch"]
    halves = np.isin(keys, keys[named & (rows["kind"] == Kind.W)]) & named & (rows["kind"] == Kind.BW)
    rows["kind"][halves] = Kind.B
    first = named & (rows["stage"] == 0) & (rows["kind"] == Kind.W)
    rows["kind"][first & ~np.isin(keys, keys[named & (rows["kind"] == Kind.B)])] = Kind.BW


def _recognised(steps: int) -> str:
    if steps == 1:
        return "1 step is recognised by its update, which ends it"
    return f"{steps} steps are recognised by their updates, each ends with one"


def _into_steps(out: RankTrace, trace: Collected, rows: NDArray[np.void], moments: NDArray[np.int64]) -> None:
    windows, pause = out.windows, out.pause
    device = out.device == "cuda"
    free = device_rows.pauses(rows if device else rows[:0])
    reads = device_rows.reads(trace) if device else np.empty(0, SPAN)
    if not windows:
        out.notes.append(f"{_UNMARKED}: all of it is one step.")
        rows = np.concatenate([rows, device_rows.alone(reads, free, pause)])
        out.steps = {0: _step(rows, int(rows["start"].min()), int(rows["end"].max()), pause)}
        return
    if not marked(trace):
        out.notes.append(f"{_UNMARKED}: {_recognised(len(windows))}.")
    when = Moments(moments)
    ended = when.reached(rows["end"])
    inside = np.zeros(len(rows), np.bool_)
    for number, (start, end) in windows.items():
        mine = when.between(start, end)
        inside[mine] = True
        if len(mine):
            own, begun = rows[mine], start
            if device:
                begun = _device_begin(start, int(ended[when.before(start)]), own)
                here = reads[(reads["start"] >= start) & (reads["start"] < end)]
                own = np.concatenate([own, device_rows.alone(device_rows.after(here, begun), free, pause)])
            out.steps[number] = _step(own, begun, max(end, int(own["end"].max())), pause)
    if not inside.all():
        out.notes.append(f"{int((~inside).sum())} of {len(rows)} operations lie outside of the steps.")


def _device_begin(start: int, ended: int, own: NDArray[np.void]) -> int:
    """Returns when a device began a step that its host began at `start`: as the host runs ahead, after the previous
    work, which ended at `ended`, but no later than the step's first kernel."""
    return max(start, min(ended, int(own["start"].min())))


def _separated(rows: NDArray[np.void], mine: NDArray[np.void], pause: int) -> NDArray[np.bool_]:
    """Returns which of `mine` do not continue the span before: more than `pause` ns after it, or with something else
    between."""
    reach, starts = np.maximum.accumulate(mine["end"])[:-1], mine["start"][1:]
    apart = starts - reach
    if pause <= JOIN_NS:
        return apart > pause
    begun = np.searchsorted(rows["start"], starts, "left") - np.searchsorted(rows["start"], reach, "left")
    # A named operation does not wait for messages in flight: its inputs arrived before it began.
    waited = (LANE_COLLECTIVE,) if mine["micro_batch"][0] >= 0 else (LANE_P2P, LANE_COLLECTIVE)
    talking = rows[np.isin(rows["lane"], waited)]
    ended = np.maximum.accumulate(np.concatenate([[-(1 << 62)], talking["end"]]))
    over = ended[np.searchsorted(talking["start"], starts, "left")] > reach
    return (apart > pause) | ((apart > JOIN_NS) & ((begun > 0) | over))


def _step(rows: NDArray[np.void], start: int, end: int, pause: int) -> NDArray[np.void]:
    """Returns the STEP row and the rows of the step in order, with adjacent ones merged (`joined`)."""
    own = joined(rows, pause)
    out = np.empty(len(own) + 1, SPAN)
    out[0], out[1:] = (Kind.STEP, LANE_HOST, 0, -1, 0, 0, start, end, 0), own
    return by_start(out)


def joined(rows: NDArray[np.void], pause: int) -> NDArray[np.void]:
    """Returns the rows in order, with adjacent ones of one kind merged; for named operations across gaps of up to
    `pause` ns."""
    rows = by_start(rows)
    firsts, ends = [np.empty(0, np.int64)], rows["end"].copy()
    for here in _alike(rows):
        mine = rows[here]
        if int(mine["kind"][0]) in _COUNTED:
            firsts.append(here)
            continue
        first = np.concatenate([[True], _separated(rows, mine, pause if mine["micro_batch"][0] >= 0 else JOIN_NS)])
        firsts.append(here[first])
        ends[here[first]] = np.maximum.reduceat(mine["end"], np.flatnonzero(first))
    kept = np.sort(np.concatenate(firsts))
    out = rows[kept]
    out["end"] = ends[kept]
    return out


def _alike(rows: NDArray[np.void]) -> list[NDArray[np.int64]]:
    """Returns the ascending indices of the rows for each combination of kind, lane, stage and micro-batch."""
    keys = rows["kind"].astype(np.int64) << 56 | rows["lane"].astype(np.int64) << 48
    keys |= (rows["stage"].astype(np.int64) & 0xFFFF) << 32 | (rows["micro_batch"].astype(np.int64) & 0xFFFFFFFF)
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(rows) else []


def _top(known: list[str], work: NDArray[np.void]) -> list[dict[str, Any]]:
    first: dict[str, int] = {}
    same = np.array([first.setdefault(name, i) for i, name in enumerate(known)], np.int64)[work["name"]]
    spent = np.bincount(same, weights=durations(work), minlength=len(known))
    counts = np.bincount(same, minlength=len(known))
    order = np.argsort(-spent, kind="stable")[:TOP]
    return [
        {"name": known[i], "family": names.family(known[i]), "count": int(counts[i]), "ns": int(spent[i])}
        for i in order
        if counts[i]
    ]
