"""How much of the database the measurements of runs take: the sum of the chunks that are stored of them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet, Sum
from django.db.models.functions import Length

from dashboard.runs.measured import LogChunk, MemoryRecord, ProfilePart, SeriesChunk, SpanChunk
from dashboard.runs.models import Run
from parallel_core.analysis.quantities import bytes_text

CHUNKS: tuple[tuple[Any, str], ...] = (
    (SpanChunk, "data"),
    (ProfilePart, "data"),
    (SeriesChunk, "data"),
    (LogChunk, "data"),
    (MemoryRecord, "curve"),
)


def blob_bytes(rows: QuerySet[Any], field: str) -> int:
    """Bytes in a binary field of the rows. Neither database reads the contents for that."""
    return int(rows.aggregate(size=Sum(Length(field)))["size"] or 0)


def space_sentence(runs: QuerySet[Run]) -> str:
    """How much of the database is used again once these runs are deleted; '' if nothing was measured."""
    own = runs.order_by().values("pk")
    return sentence_of(sum(blob_bytes(kind.objects.filter(attempt__run__in=own), field) for kind, field in CHUNKS))


def sentence_of(size: int) -> str:
    return f"That is {bytes_text(size)} of the database." if size else ""
