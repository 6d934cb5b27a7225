"""Exports the spans of a traced step: Chrome's trace format, which Perfetto opens, and plain rows.

Trace Event Format (Chromium project): complete events "X" with times in microseconds, a process for each rank, a thread
for each lane, flow events "s" and "f" from each SEND to its RECV. Times are whole nanoseconds, so three decimals are
exact.

Data without a field in the format is in `otherData`, under MARK: `About`, and what the file should contain.
`traces.trainyard_export` uses it to read the same spans back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
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
"""Columns of `table`: numbers and names of our own, so that no spreadsheet cell is a formula."""
FIELDS = ("stage", "micro_batch", "replica", "version", "bytes")
MARK, FORMAT, CLOCK = "trainyard", 1, "ns"


@dataclass(frozen=True)
class About:
    """What a step's spans do not contain. `spec`: that of its run as JSON, None for a trace from elsewhere."""

    step: int
    spec: Mapping[str, Any] | None = None
    run: str = ""
    """Identifies the run where it ran: files of different runs are not one job."""
    recorded: int = 0
    """Spans that its ranks recorded; they may have kept fewer."""
    others: float | None = None
    """Share of the devices' time that other processes took, None if not measured; rules that judge times need it."""
    device: str = "cpu"
    counted: bool = False
    """Whether stages and micro-batches were inferred from messages and order (`traces.inferred_pipeline`)."""


def table(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> Iterator[tuple[Any, ...]]:
    """One row a span in COLUMNS, rank after rank; times from the start of the step. None for waits that are not
    known, as of a step without all its ranks."""
    zero = waits.step_start(spans)
    waited = waits.waited_if_whole(spans, layout)
    for rank, rows in sorted(spans.items()):
        columns = [rows[name].tolist() for name in ("kind", "lane", "stage", "micro_batch", "replica", "version")]
        times = [
            (rows["start"] - zero).tolist(),
            (rows["end"] - zero).tolist(),
            waited[rank].ns.tolist() if rank in waited else [None] * len(rows),
            rows["bytes"].tolist(),
        ]
        for kind, lane, *rest in zip(*columns, *times, strict=True):
            yield rank, Kind(kind).name, LANES[lane], *rest


def chrome_trace(spans: Mapping[int, NDArray[np.void]], layout: Layout, about: About) -> Iterator[str]:
    """One JSON document, in pieces."""
    zero = waits.step_start(spans)
    kept = {rank: len(rows) for rank, rows in sorted(spans.items())}
    mark = {"format": FORMAT, "clock": CLOCK, "begin": zero, "ranks": kept, **asdict(about)}
    mark["recorded"] = max(about.recorded, sum(kept.values()))
    other = json.dumps({MARK: mark}, separators=(",", ":"))
    yield f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n'
    first = True
    for event in _events(spans, layout, zero):
        yield ("" if first else ",\n") + json.dumps(event, separators=(",", ":"))
        first = False
    yield "\n]}\n"


def _events(spans: Mapping[int, NDArray[np.void]], layout: Layout, zero: int) -> Iterator[dict[str, Any]]:
    rows_in_order = waits.ordered(spans)
    sends, waited = waits.sends(rows_in_order, layout), waits.waited_if_whole(rows_in_order, layout)
    for rank, rows in sorted(rows_in_order.items()):
        place = layout.coords(rank)
        name = f"rank {rank}: place {place.place}, replica {place.replica}, tensor {place.tensor}"
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}
        for lane, word in enumerate(LANES):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": {"name": word}}
        known = waited[rank].ns.tolist() if rank in waited else [None] * len(rows)
        for row, wait in zip(rows, known, strict=True):
            yield _complete(rank, row, wait, zero)
        yield from _flows(rank, rows, waits.received(rank, rows, layout, sends), zero)


def _complete(rank: int, row: np.void, waited: int | None, zero: int) -> dict[str, Any]:
    wait = {} if waited is None else {"waited_us": waited / 1000}
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
        "args": {field: int(row[field]) for field in FIELDS} | wait,
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
