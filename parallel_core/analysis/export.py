"""The spans of a traced step for other tools: Chrome's trace format, which Perfetto opens, and plain rows.

Trace Event Format (Chromium project): complete events "X" with times in microseconds, a process a rank, a thread a
lane, flow events "s" and "f" from each SEND to its RECV.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.layout import Layout
from parallel_core.observe.records import LANES
from parallel_core.schedule.ir import RECVS, Kind

COLUMNS = (
    "rank", "kind", "lane", "stage", "micro_batch", "replica", "version", "start_ns", "end_ns", "waited_ns", "bytes",
)  # fmt: skip
"""Of `table`: numbers, and names of our own, so that no cell is a formula."""
FIELDS = ("stage", "micro_batch", "replica", "version", "bytes")


def table(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> Iterator[tuple[Any, ...]]:
    """A row a span in COLUMNS, rank after rank; times from the start of the step."""
    zero = waits.origin(spans)
    for rank, rows, waited in _waited(spans, layout):
        columns = [rows[name].tolist() for name in ("kind", "lane", "stage", "micro_batch", "replica", "version")]
        times = [
            (rows["start"] - zero).tolist(),
            (rows["end"] - zero).tolist(),
            waited.tolist(),
            rows["bytes"].tolist(),
        ]
        for kind, lane, *rest in zip(*columns, *times, strict=True):
            yield rank, Kind(kind).name, LANES[lane], *rest


def chrome_trace(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> Iterator[str]:
    """One JSON document, piece by piece."""
    zero = waits.origin(spans)
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    first = True
    for event in _events(spans, layout, zero):
        yield ("" if first else ",\n") + json.dumps(event, separators=(",", ":"))
        first = False
    yield "\n]}\n"


def _events(spans: Mapping[int, NDArray[np.void]], layout: Layout, zero: int) -> Iterator[dict[str, Any]]:
    sends = waits.sends(waits.ordered(spans), layout)
    for rank, rows, waited in _waited(spans, layout):
        place = layout.coords(rank)
        name = f"rank {rank}: place {place.place}, replica {place.replica}, tensor {place.tensor}"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        for lane, word in enumerate(LANES):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": word}}
        for row, wait in zip(rows, waited.tolist(), strict=True):
            yield _complete(rank, row, wait, zero)
        yield from _flows(rank, rows, waits.received(rank, rows, layout, sends), zero)


def _complete(rank: int, row: np.void, waited: int, zero: int) -> dict[str, Any]:
    kind, lane = Kind(int(row["kind"])), int(row["lane"])
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    return {
        "ph": "X",
        "name": f"{kind.name}{which}",
        "cat": LANES[lane],
        "pid": rank,
        "tid": lane,
        "ts": int(row["start"] - zero) / 1000,
        "dur": int(row["end"] - row["start"]) / 1000,
        "args": {field: int(row[field]) for field in FIELDS} | {"waited_us": waited / 1000},
    }


def _flows(rank: int, rows: NDArray[np.void], causes: waits.Causes, zero: int) -> Iterator[dict[str, Any]]:
    """An arrow for each message that the rank received."""
    receives = waits.of_kinds(rows, *RECVS)
    lane = LANES.index("p2p")
    for i, (row, at, sender) in enumerate(zip(receives, causes.at.tolist(), causes.ranks.tolist(), strict=True)):
        if sender >= 0:
            shared = {"name": "message", "cat": "message", "id": f"{rank}-{i}", "tid": lane}
            yield {**shared, "ph": "s", "pid": sender, "ts": (at - zero) / 1000}
            yield {**shared, "ph": "f", "bp": "e", "pid": rank, "ts": int(row["end"] - zero) / 1000}


def waited_ns(
    rank: int, rows: NDArray[np.void], arrivals: Mapping[tuple[int, Kind], waits.Causes], received: waits.Causes
) -> NDArray[np.int64]:
    """For each row (in order of its start) how long the rank stood in it for another rank's sake."""
    out = np.zeros(len(rows), np.int64)
    found = [((kind,), causes.at) for (other, kind), causes in arrivals.items() if other == rank]
    for kinds, at in [*found, (tuple(RECVS), received.at)]:
        here = np.isin(rows["kind"], [int(kind) for kind in kinds])
        out[here] = np.clip(at, rows["start"][here], rows["end"][here]) - rows["start"][here]
    return out


def _waited(
    spans: Mapping[int, NDArray[np.void]], layout: Layout
) -> Iterator[tuple[int, NDArray[np.void], NDArray[np.int64]]]:
    rows = waits.ordered(spans)
    arrivals, sends = waits.arrivals(rows, layout), waits.sends(rows, layout)
    for rank, own in sorted(rows.items()):
        yield rank, own, waited_ns(rank, own, arrivals, waits.received(rank, own, layout, sends))
