"""Gathers the writes of one transaction and stores them together: points, spans, memory, logs, cursors, newest values.

A cursor moves in the same transaction as the data before it, so data that is read twice is stored once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from django.db.models import Max, Model

from dashboard.control import multi_host
from dashboard.control.frames import Decoded
from dashboard.control.step_shares import Found, Points, share_points, traced_share_points
from dashboard.json_values import finite
from dashboard.ledger import host_links
from dashboard.runs import left_out
from dashboard.runs.models import (
    Attempt,
    Checkpoint,
    Cursor,
    LogChunk,
    MemoryRecord,
    ProfilePart,
    RankInfo,
    Run,
    SeriesChunk,
    SpanChunk,
)
from parallel_core.analysis.generated import joined
from parallel_core.observe.records import POINT

CHUNK_POINTS = 500
LOG_CHUNK_BYTES = 64 * 1024
FILLED = ("first_step", "last_step", "count", "closed", "data")
"""Columns of a SeriesChunk that `fill` sets."""
LATEST = {"loss": "loss", "eval_loss": "held_out", "tokens_per_s": "tokens_per_s"}
"""Series of a run -> the column of the run's row that holds its newest value."""

TOPICS = {
    "points": "points",
    "spans": "spans",
    "omitted": "spans",
    "waits": "points",
    "memory": "memory",
    "profiles": "info",
    "info": "info",
    "fault": "info",
    "checkpoints": "state",
    "left_out": "state",
    "generated": "text",
    "links": "text",
}
"""Field of Decoded -> topic announced to open pages."""

FileKey = tuple[int, int, str]  # attempt, rank, channel


class Store:
    """Gathers writes between two flushes; belongs to one transaction and is discarded with it."""

    def __init__(self) -> None:
        self._cursors: dict[FileKey, Cursor] = {}
        self._moved: set[FileKey] = set()
        self._points: dict[int, dict[tuple[int, str], list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
        self._logs: dict[tuple[int, int], list[tuple[int, bytes]]] = defaultdict(list)
        self._rows: list[SpanChunk | MemoryRecord | ProfilePart] = []
        self._traced: dict[int, dict[int, float]] = defaultdict(dict)
        """Attempt id -> traced step without `waits` records -> when it was reported, unix seconds."""
        self._waits: dict[int, Found] = defaultdict(lambda: defaultdict(list))
        """Attempt id -> rank -> its newly arrived `waits` records."""

    def offset(self, key: FileKey) -> int:
        """How many bytes of the file have arrived, including those in this transaction."""
        if key not in self._cursors:
            attempt, rank, channel = key
            row, _ = Cursor.objects.select_for_update().get_or_create(attempt_id=attempt, rank=rank, channel=channel)
            self._cursors[key] = row
        return self._cursors[key].offset

    def advance(self, key: FileKey, to: int) -> None:
        self._cursors[key].offset, self._cursors[key].failures = to, 0
        self._moved.add(key)

    def add_log(self, attempt: int, rank: int, start: int, data: bytes) -> None:
        self._logs[attempt, rank].append((start, data))

    def add_records(self, attempt: Attempt, rank: int, records: Decoded) -> set[str]:
        """Takes the records of one batch; returns the topics to announce."""
        for name, parts in records.points.items():
            self._points[attempt.pk][rank, name] += parts
        for header, blob in records.spans:
            told = header.pop("t")
            if not header.pop("waits"):
                self._traced[attempt.pk][header["step"]] = told
            self._rows.append(SpanChunk(attempt=attempt, rank=rank, data=blob, **header))
        self._rows += [
            SpanChunk(attempt=attempt, rank=rank, step=step, count=0, total=total, data=b"")
            for step, total in records.omitted
        ]
        if records.waits:
            self._waits[attempt.pk][rank] += records.waits
        for header, blob in records.memory:
            self._rows.append(_memory_row(attempt, rank, header, blob))
        for header, blob in records.profiles:
            self._rows.append(ProfilePart(attempt=attempt, rank=rank, data=blob, **header))
        self._keep_told(attempt, rank, records)
        return {topic for name, topic in TOPICS.items() if getattr(records, name)}

    def flush(self, attempts: dict[int, Attempt | None]) -> None:
        """Stores everything gathered so far. `attempts` by id, with their runs."""
        for pk, series in self._points.items():
            self._add_points(pk, series)
        for (pk, rank), parts in self._logs.items():
            _append_log(pk, rank, parts)
        spans = [row for row in self._rows if isinstance(row, SpanChunk)]
        metered = [row for row in self._rows if isinstance(row, MemoryRecord)]
        # After a worker's restart a step may arrive again at another offset: the first one stays.
        SpanChunk.objects.bulk_create(spans, ignore_conflicts=True)
        self._store_shares(attempts)
        MemoryRecord.objects.bulk_create(metered, ignore_conflicts=True)
        profiles = [row for row in self._rows if isinstance(row, ProfilePart)]
        ProfilePart.objects.bulk_create(profiles, ignore_conflicts=True)
        _rewrite(Cursor, [self._cursors[key] for key in self._moved], ("offset", "failures"))
        for pk in {*self._points, *(row.attempt_id for row in metered)}:
            attempt = attempts[pk]
            if attempt is not None:
                self._show_newest(attempt, self._points.get(pk, {}), any(row.attempt_id == pk for row in metered))
        self._points.clear()
        self._logs.clear()
        self._rows.clear()
        self._traced.clear()
        self._waits.clear()
        self._moved.clear()

    def _store_shares(self, attempts: dict[int, Attempt | None]) -> None:
        """Stores the shares of the steps of which now everything is there."""
        for pk, steps in self._traced.items():
            if (attempt := attempts[pk]) is not None and (points := traced_share_points(attempt, steps)):
                self._add_points(pk, points)
        for pk, found in self._waits.items():
            if (attempt := attempts[pk]) is not None and (points := share_points(attempt, found)):
                self._add_points(pk, points)

    def _add_points(self, attempt: int, series: Points) -> None:
        _append_points(attempt, series)

    def _show_newest(self, attempt: Attempt, series: Points, metered: bool) -> None:
        _newest_values(attempt, series, metered)

    def _keep_told(self, attempt: Attempt, rank: int, records: Decoded) -> None:
        _keep_told(attempt, rank, records)


def _rewrite(kind: type[Model], rows: Sequence[Model], fields: Sequence[str]) -> None:
    """Writes `fields` of existing rows.

    bulk_update would build a CASE of every row for each field, which takes several times as long as SQLite's own work.
    """
    kind._default_manager.bulk_create(rows, update_conflicts=True, unique_fields=("id",), update_fields=fields)


def _keep_told(attempt: Attempt, rank: int, records: Decoded) -> None:
    """Stores the records that change existing rows: checkpoints, info, generated text, links and faults."""
    # By step: which of them is the newest decides whether the page warns.
    for header in sorted([*records.checkpoints, *records.left_out], key=itemgetter("step")):
        if "why" in header:
            left_out.note(attempt, multi_host.worker_of(attempt.devices, rank), header)
        else:
            _keep_checkpoint(attempt, rank, header)
    if records.info:
        RankInfo.objects.update_or_create(attempt=attempt, rank=rank, defaults=records.info)
    if records.generated:
        _keep_text(attempt, rank, records.generated)
    for header in records.links:
        host_links.keep(attempt, header)
    if records.fault:
        faults = {**attempt.report.get("faults", {}), str(rank): records.fault}
        attempt.report = {**attempt.report, "faults": faults}
        attempt.save(update_fields=("report",))


def _keep_text(attempt: Attempt, rank: int, headers: list[dict[str, Any]]) -> None:
    """Adds newly generated tokens and text to the rank's row."""
    row, _ = RankInfo.objects.get_or_create(attempt=attempt, rank=rank)
    for header in headers:
        row.generated = dict(joined(row.generated or None, header))
    row.save(update_fields=("generated",))


def _keep_checkpoint(attempt: Attempt, rank: int, header: dict[str, Any]) -> None:
    """Stores a new checkpoint's row, and deletes the rows of checkpoints that its worker has deleted."""
    worker = multi_host.worker_of(attempt.devices, rank)
    mine = Checkpoint.objects.filter(run=attempt.run_id, worker=worker)
    mine.exclude(step__in=header["kept"]).delete()
    if header["step"] in header["kept"]:
        found = {"attempt": attempt, **{name: header[name] for name in ("bytes", "seconds", "blocked", "held_out")}}
        mine.update_or_create(run_id=attempt.run_id, worker=worker, step=header["step"], defaults=found)


def _memory_row(attempt: Attempt, rank: int, header: dict[str, Any], blob: bytes) -> MemoryRecord:
    return MemoryRecord(
        attempt=attempt,
        rank=rank,
        step=header["step"],
        peak_total=header["peak_total"],
        peak=header.get("peak") or {},
        final=header.get("final") or {},
        rss_delta=int(header.get("rss_delta") or 0),
        curve=blob,
    )


def _append_points(attempt: int, series: Points) -> None:
    """Adds points to the open chunk of each series; closes full chunks and opens the next."""
    ranks, names = ({key[i] for key in series} for i in range(2))
    found = SeriesChunk.objects.filter(attempt=attempt, closed=False, name__in=names, rank__in=ranks)
    open_chunks = {(chunk.rank, chunk.name): chunk for chunk in found.order_by()}
    changed: list[SeriesChunk] = []
    new: list[SeriesChunk] = []
    for (rank, name), parts in series.items():
        chunk = open_chunks.get((rank, name))
        before = [np.frombuffer(bytes(chunk.data), POINT)] if chunk else []
        points = np.concatenate([*before, *parts])
        for at in range(0, len(points), CHUNK_POINTS):
            row = chunk if chunk and at == 0 else SeriesChunk(attempt_id=attempt, rank=rank, name=name)
            fill(row, points[at : at + CHUNK_POINTS])
            (changed if row.pk else new).append(row)
    _rewrite(SeriesChunk, changed, FILLED)
    SeriesChunk.objects.bulk_create(new)


def fill(row: SeriesChunk, points: np.ndarray) -> None:
    """Makes these the row's points, POINT rows in step order, at least one. A row that was closed stays so."""
    row.first_step, row.last_step = int(points["step"].min()), int(points["step"].max())
    row.count, row.data = len(points), points.tobytes()
    row.closed = row.closed or len(points) >= CHUNK_POINTS


def _append_log(attempt: int, rank: int, parts: list[tuple[int, bytes]]) -> None:
    """Extends the last chunk while it is small, so that logging line by line does not make a row for each line."""
    start, data = parts[0][0], b"".join(part for _, part in parts)
    last = LogChunk.objects.filter(attempt=attempt, rank=rank).order_by("-start").first()
    if last and last.end == start and len(last.data) < LOG_CHUNK_BYTES:
        last.data, last.end = bytes(last.data) + data, start + len(data)
        last.save(update_fields=("data", "end"))
    else:
        LogChunk.objects.create(attempt_id=attempt, rank=rank, start=start, end=start + len(data), data=data)


def _newest_values(attempt: Attempt, series: Points, metered: bool) -> None:
    """Updates the newest values in the run's row, for lists; late data of an earlier attempt does not change them."""
    if Attempt.objects.filter(run=attempt.run_id, number__gt=attempt.number).exists():
        return
    values: dict[str, Any] = {}
    for name, column in LATEST.items():
        if (0, name) in series:
            values[column] = finite(float(series[0, name][-1][-1]["value"]))
    if (0, "loss") in series:
        values["step"] = int(series[0, "loss"][-1][-1]["step"])
    if (0, "step_time") in series:
        values["step_time"] = _median_step(attempt)
    if metered:
        values["memory_peak"] = MemoryRecord.objects.filter(attempt=attempt).aggregate(top=Max("peak_total"))["top"]
    if values:
        Run.objects.filter(pk=attempt.run_id).update(**values)


def _median_step(attempt: Attempt) -> float | None:
    """Median seconds of the newest timed steps, of the last two chunks; the exact one is computed at the end of the
    run."""
    train = attempt.run.spec.get("train", {})
    chunks = SeriesChunk.objects.filter(attempt=attempt, rank=0, name="step_time").order_by("-id")[:2]
    points = np.concatenate([np.frombuffer(bytes(chunk.data), POINT) for chunk in chunks])
    timed = points[(points["step"] >= train.get("warmup_steps", 0)) & (points["step"] < train.get("steps", 1 << 30))]
    return finite(float(np.median(timed["value"]))) if len(timed) else None
