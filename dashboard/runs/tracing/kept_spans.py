"""How much of a traced step is there, and in words why not all of it: its worker drops spans for want of disk."""

from __future__ import annotations

from django.db.models import QuerySet

from dashboard.one_look import read_once
from dashboard.runs.models import Run, SpanChunk
from dashboard.runs.tracing.traced import newest_traced_step, spans_of_newest
from parallel_core.analysis.quantities import count_text, step_text

WHY = "its worker's disk limit was reached before the yard had stored them."


@read_once
def span_counts(run: Run, step: int, rank: int | None = None) -> tuple[int, int]:
    """(kept, recorded) numbers of spans of a step over all ranks, or of one: charts that show a part say "N of M"."""
    counts = [(count, total) for _, own, count, total in chunks_of(run, step) if rank is None or own == rank]
    return sum(count for count, _ in counts), sum(total for _, total in counts)


@read_once
def chunks_of(run: Run, step: int) -> list[tuple[int, int, int, int]]:
    """(attempt, rank, number of spans kept, recorded) of each rank whose part of a traced step has arrived."""
    return list(spans_of_newest(run).filter(step=step).values_list("attempt", "rank", "count", "total"))


def kept_text(run: Run, step: int) -> str:
    """ "12 of 40 spans" of a traced step of which not all were kept; '' of any other."""
    kept, recorded = span_counts(run, step)
    return f"{count_text(kept)} of {count_text(recorded)} spans" if kept < recorded else ""


def dropped_text(run: Run, step: int | None) -> str:
    """Why there is nothing to see of a traced step (None = the newest) of which no span was kept; '' of any other."""
    shown = newest_traced_step(run) if step is None else step
    if shown is None or span_counts(run, shown)[0] or not (said := kept_text(run, shown)):
        return ""
    return f"{said} of {step_text(shown)} were kept: {WHY}"


def missing_text(run: Run, step: int) -> str:
    """Why some ranks of a traced step have no spans; '' where none of them were dropped."""
    ranks = _dropped(run).filter(step=step).count()
    return f"the spans of {ranks} of {run.devices} ranks of {step_text(step)} were not kept: {WHY}" if ranks else ""


def any_dropped(run: Run) -> bool:
    """Whether spans of any of its traced steps were dropped."""
    return _dropped(run).exists()


@read_once
def newest_words(run: Run, step: int) -> str:
    """What the `newest_traced_step`, which is `step`, is called: it is not the newest one if later spans were
    dropped."""
    if not _dropped(run).filter(step__gt=step).exists():
        return "newest traced step"
    ranks = spans_of_newest(run).filter(step=step, count__gt=0).count()
    return "newest whole traced step" if ranks == run.devices else "newest traced step with spans"


def _dropped(run: Run) -> QuerySet[SpanChunk]:
    return spans_of_newest(run).filter(count=0)
