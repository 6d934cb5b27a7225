"""The largest layer count of each strategy: predicted as outlines, found by real runs as solid bars."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import capacity
from dashboard.charts.chart import Chart, Entry
from parallel_core.analysis.quantities import bytes_text, count_text, plural_text

COLUMNS = ("strategy", "predicted layers", "largest that fitted", "")


def chart(entries: Sequence[Entry], title: str, runs: int, limit: int | None) -> Chart:
    """Outlines are predictions, solid bars what fitted.

    Of each entry, `largest` is the predicted number of layers and `layers` the largest that fitted; `done` says whether
    any fitted, `status` that the search goes on or was stopped: what fitted so far is outlined, too. `runs` = number of
    runs of all searches, `limit` = bytes a rank may hold.
    """
    within = f" within {bytes_text(limit)} a rank" if limit else ""
    searches = "search" if len(entries) == 1 else "searches"
    so_far = "; thin outline = fitted so far" if any(entry.done and entry.status for entry in entries) else ""
    return Chart(
        "fit",
        title,
        f"Most layers that ran{within}; outline = predicted, solid = fitted, and one layer more did not{so_far}",
        f"measured, {plural_text(runs, 'run')} of {len(entries)} {searches}, each to its metered step",
        capacity.figure(entries, found=True),
        COLUMNS,
        [_row(entry) for entry in entries],
    )


def _row(entry: Entry) -> list[str]:
    fitted = f"{count_text(entry.layers)}{' so far' if entry.status else ''}" if entry.done else ""
    return [entry.label, count_text(entry.largest or 0), fitted, entry.status]
