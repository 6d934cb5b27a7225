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
    any fitted, `status` that the search goes on. `runs` = number of runs of all searches, `limit` = bytes a rank may
    hold.
    """
    within = f" within {bytes_text(limit)} a rank" if limit else ""
    searches = "search" if len(entries) == 1 else "searches"
    return Chart(
        "fit",
        title,
        f"Most layers that ran{within}; outline = predicted, solid = fitted, and one layer more did not",
        f"measured, {plural_text(runs, 'run')} of {len(entries)} {searches}, each to its metered step",
        capacity.figure(entries, found=True),
        COLUMNS,
        [_row(entry) for entry in entries],
    )


def _row(entry: Entry) -> list[str]:
    return [entry.label, count_text(entry.largest or 0), count_text(entry.layers) if entry.done else "", entry.status]
