"""The largest layer count of each strategy: predicted as outlines, found by real runs as solid bars."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import capacity
from dashboard.charts.chart import Chart, Entry
from parallel_core.analysis.quantities import bytes_text, count_text, plural_text
from parallel_core.limits import MAX_LAYERS

AT_LIMIT = "no spec may have more layers"
"""Status of an entry whose layers fitted up to the most that a spec may have."""
COLUMNS = ("strategy", "predicted layers", "largest that fitted", "")


def chart(entries: Sequence[Entry], title: str, runs: int, limit: int | None) -> Chart:
    """Outlines are predictions, solid bars what fitted.

    Of each entry, `largest` is the predicted number of layers and `layers` the largest that fitted; `done` says whether
    any fitted, `status` that the search goes on, was stopped or ended at AT_LIMIT: what fitted is outlined, too.
    `runs` = number of runs of all searches, `limit` = bytes a rank may hold.
    """
    within = f" within {bytes_text(limit)} a rank" if limit else ""
    searches = "search" if len(entries) == 1 else "searches"
    outlined = {entry.status for entry in entries if entry.done and entry.status}
    so_far = "; thin outline = fitted so far" if outlined - {AT_LIMIT} else ""
    so_far += f"; thin outline at {count_text(MAX_LAYERS)} = fitted, and {AT_LIMIT}" if AT_LIMIT in outlined else ""
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
    more = " or more" if entry.status == AT_LIMIT else " so far" if entry.status else ""
    fitted = f"{count_text(entry.layers)}{more}" if entry.done else ""
    return [entry.label, count_text(entry.largest or 0), fitted, entry.status]
