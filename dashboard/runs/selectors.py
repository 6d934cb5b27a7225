"""What pages and the API read about a run: traces, memory, logs, and breakdowns computed by parallel_core.

Runs are listed by `runs.browse.run_list`, metric series read by `runs.metrics`, traced steps listed by
`runs.tracing.traced`; what a queued run waits for is in `runs.waiting.queue`. Some of their names are exported here as
well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.db.models import Count, Max, Subquery

from dashboard.one_look import looking, read_once
from dashboard.runs.attempts_read import attempt_of, attempts_of
from dashboard.runs.browse.run_list import SORTS, Filters, list_runs
from dashboard.runs.metrics import (
    Series,
    after,
    beginnings,
    first_after,
    grown,
    newest,
    series,
    series_and_replaced,
)
from dashboard.runs.models import ENDED, Attempt, Cursor, LogChunk, MemoryRecord, RankInfo, Run
from dashboard.runs.tracing.kept_spans import (
    any_dropped,
    chunks_of,
    dropped_text,
    kept_text,
    missing_text,
    newest_words,
    span_counts,
)
from dashboard.runs.tracing.timed_steps import timed, timed_values
from dashboard.runs.tracing.traced import (
    dropped_steps,
    newest_traced_step,
    spans_of_newest,
    step_choice,
    traced_from,
    traced_steps,
    was_traced,
)
from dashboard.runs.waiting.queue import Waiting, waiting
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.breakdown import breakdown as analyse
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.spec import RunSpec

__all__ = [
    "SORTS",
    "Filters",
    "LogPart",
    "Series",
    "Waiting",
    "after",
    "any_dropped",
    "arrived",
    "attempt_of",
    "beginnings",
    "breakdown",
    "dropped_text",
    "first_after",
    "grown",
    "kept_text",
    "list_runs",
    "log",
    "log_ranks",
    "memory",
    "missing_text",
    "newest",
    "newest_traced_step",
    "newest_words",
    "ranks",
    "series",
    "series_and_replaced",
    "span_counts",
    "spans",
    "step_choice",
    "timed",
    "timed_values",
    "traced_from",
    "traced_steps",
    "typical_step",
    "waiting",
    "was_traced",
]

LOG_PART_BYTES = 64 * 1024
LONGEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""


def on_hosts(names: Sequence[str]) -> list[Run]:
    """The runs that hold devices of these workers now."""
    active = Attempt.objects.filter(over=False).select_related("run__owner").order_by("pk") if names else ()
    return [attempt.run for attempt in active if any(node["worker"] in names for node in attempt.devices)]


@read_once
def ranks(run: Run) -> dict[int, RankInfo]:
    """The RankInfo of each rank of the newest attempt."""
    attempt = attempt_of(run)
    return {info.rank: info for info in RankInfo.objects.filter(attempt=attempt)} if attempt else {}


def typical_step(run: Run) -> int | None:
    """The timed step, traced by every rank, whose time is nearest the run's median; None if there is none.

    It stands for the run in charts of where the time went, so it should not be a disturbed one. For an ended run it is
    read from the summary.
    """
    if run.state in ENDED and "breakdown_step" in (run.summary or {}):
        kept: int | None = run.summary["breakdown_step"]
        return kept
    return find_typical_step(run)


def find_typical_step(run: Run) -> int | None:
    """Computes `typical_step` from the measurements."""
    by_step = spans_of_newest(run).order_by().values("step").annotate(ranks=Count("pk"))
    steps = list(by_step.filter(ranks=run.devices).values_list("step", flat=True))
    if not steps:
        return None
    times = series(run, "step_time")
    whole = np.setdiff1d(np.array(steps, np.int64), np.array(dropped_steps(run), np.int64))
    stats, known = timed(run, times), np.isin(times.step, whole)
    if stats is None or not known.any():
        return None
    return int(times.step[known][np.abs(times.value[known] - stats.median).argmin()])


def spans(run: Run, step: int | None = None) -> dict[int, np.ndarray]:
    """rank -> SPAN rows of one traced step (None = the newest complete one); {} if there is none."""
    step = newest_traced_step(run) if step is None else step
    if step is None:
        return {}
    return spans_and_total(run, step)[0]


@read_once
def spans_and_total(run: Run, step: int) -> tuple[dict[int, np.ndarray], int]:
    """Returns rank -> SPAN rows of a traced step, and the number recorded, which is at least the number kept. A rank
    whose spans were dropped is not among the ranks, as if they had not arrived yet."""
    if looking():
        arrived(run, step)  # first: what is made of them later in this look is kept under it, and may not be older
    chunks = list(spans_of_newest(run).filter(step=step).order_by("rank"))
    found = {chunk.rank: np.frombuffer(bytes(chunk.data), SPAN) for chunk in chunks if chunk.count}
    return found, sum(chunk.total for chunk in chunks)


@read_once
def arrived(run: Run, step: int) -> str:
    """Part of a cache key: another one as soon as more of a traced step has arrived, or that of another attempt, which
    has as many spans."""
    kept, recorded = span_counts(run, step)
    attempt = next((own for own, *_ in chunks_of(run, step)), None)
    return f"{run.pk}:{run.queued_at.timestamp()}:{attempt}:{step}:{kept}:{recorded}"


def clock_within(run: Run, step: int) -> int | None:
    """The largest error bound (ns) of clocks on other hosts against rank 0's; None on one host: that is known without
    the rows of spans, which are large."""
    if not any(len(attempt.devices) > 1 for attempt in attempts_of(run)):
        return None
    found: int | None = spans_of_newest(run).filter(step=step).aggregate(most=Max("clock_within"))["most"]
    return found


@read_once
def memory(run: Run, curves: bool = False) -> dict[int, MemoryRecord]:
    """rank -> its newest metered step, of the newest attempt that metered any. Without `curves`, those are read one by
    one when they are used: each takes some hundred kilobytes."""
    rows = MemoryRecord.objects.filter(attempt__run=run).order_by("-attempt__number", "step")
    newest = rows.values_list("attempt_id", flat=True).first()
    if newest is None:
        return {}
    found = rows.filter(attempt=newest).order_by("step")
    return {row.rank: row for row in (found if curves else found.defer("curve"))}


def worst_memory(run: Run) -> MemoryRecord | None:
    """That of `memory` with the highest peak; None if no rank metered a step."""
    return max(memory(run).values(), key=lambda record: record.peak_total, default=None)


def breakdown(run: Run, step: int | None = None) -> dict[int, Breakdown]:
    """rank -> breakdown of one traced step (None = the newest complete one); {} if there is none."""
    rows = spans(run, step)
    return analyse(rows, Layout.of(RunSpec.stored(run.spec))) if rows else {}


@dataclass(frozen=True)
class LogPart:
    """Bytes [start, end) of a log of `total` bytes, decoded; begins and ends between characters, except where the log
    itself ends inside one."""

    text: str = ""
    start: int = 0
    end: int = 0
    total: int = 0
    attempt: int = 0
    """The number of the attempt that wrote it; 0 where none wrote any."""


def log(run: Run, rank: int, start: int = 0, limit: int = LOG_PART_BYTES) -> LogPart:
    """A part of a rank's stdout and stderr, of the newest attempt that wrote any. `start` < 0 counts from the end.

    A reader that continues at `end` always gets on: a part has room for one character, whatever the limit, and the last
    one of an attempt that is over is not held back until it is complete.
    It begins up to three bytes earlier if `start` is inside a character.
    """
    newest = LogChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    of_newest = newest.values_list("attempt_id", "attempt__number", "attempt__over")
    attempt, ordinal, over = of_newest.first() or (None, 0, False)
    every = LogChunk.objects.filter(attempt=attempt)
    chunks = every.filter(rank=rank).order_by("start")
    total = chunks.order_by("-end").values_list("end", flat=True).first() or 0
    start = max(0, total + start) if start < 0 else min(start, total)
    asked, end = start + limit, min(total, start + max(limit, LONGEST_CHARACTER))
    first = max(0, start - LONGEST_CHARACTER + 1) if start < end else start
    parts = [
        bytes(chunk.data)[max(0, first - chunk.start) : end - chunk.start]
        for chunk in chunks.filter(end__gt=first, start__lt=end)
    ]
    data = b"".join(parts)
    skipped = len(_whole_characters(data[: start - first]))
    data, start = data[skipped:], first + skipped
    if end < total or not over:
        data = _whole_characters(data)
    data = (_whole_characters(data[: asked - start]) if asked < end else b"") or data
    return LogPart(data.decode(errors="replace"), start, start + len(data), total, ordinal)


def log_ranks(run: Run) -> list[int]:
    """The ranks that have a log, of the newest attempt that wrote any. The cursors say so: one row a rank instead of
    every chunk."""
    newest = LogChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    having = Cursor.objects.filter(attempt=Subquery(newest.values("attempt_id")[:1]), channel="log", offset__gt=0)
    return list(having.order_by("rank").values_list("rank", flat=True))


def _whole_characters(data: bytes) -> bytes:
    """The data without the first bytes of an incomplete UTF-8 character at its end; invalid bytes stay."""
    for back in range(1, min(LONGEST_CHARACTER, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if back < length else data
    return data
