"""Many series of one run, from one query: judging a run takes a dozen of them, and a study forty runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from dashboard.runs.models import Run, SeriesChunk
from dashboard.runs.series_parts import joined, merged
from dashboard.runs.tracing.host_clocks import ahead
from parallel_core.observe.records import POINT, SPARSE_SERIES

NONE = np.empty(0, POINT)


def curves(run: Run, names: Collection[str], ranks: Iterable[int] = (0,)) -> dict[tuple[str, int], np.ndarray]:
    """The points of each of these series by name and rank, as `metrics.series` has them; those without any are left
    out. `names` has the losses where it has the held-out ones, which are replaced where those are."""
    chunks = SeriesChunk.objects.filter(attempt__run=run, name__in=names, rank__in=set(ranks)).order_by()
    fields = ("name", "rank", "attempt__number", "first_step", "pk", "data")
    found: dict[tuple[str, int], list[tuple[int, int, int, Any]]] = {}
    for name, rank, *chunk in chunks.values_list(*fields):
        found.setdefault((name, rank), []).append(tuple(chunk))
    begun: dict[int, int] = {}
    for number, first, *_ in found.get(("loss", 0), ()):
        begun[number] = min(first, begun.get(number, first))
    return {
        (name, rank): _points(run, rank, own, begun if name in SPARSE_SERIES else {})
        for (name, rank), own in found.items()
    }


def _points(run: Run, rank: int, chunks: list[tuple[int, int, int, Any]], begun: dict[int, int]) -> np.ndarray:
    rows = ((number, first, data) for number, first, _, data in sorted(chunks, key=lambda chunk: chunk[:3]))
    parts, _ = merged(rows, ahead(run, rank), begun)
    return joined(parts)
