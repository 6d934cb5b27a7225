"""A study's full table as numbers in SI units, not rounded, for the CSV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dashboard.csv_cells import no_formula
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.breakdown import COMPONENTS

METERS = ("tokens_per_s", "tflops", "mfu", "hfu", "peak_flops_per_s", "peak_devices")
"""At the median step (see control.summary): tokens are what the run's speed counts, tflops is per device, and the peak
that of all devices."""
# docs/api.md explains the columns. A new one comes last: some read the file by the position of a column.
COLUMNS = (
    *("run", "label", "state"),
    *("step_median_s", "step_p10_s", "step_p90_s", "timed_steps", "global_batch", "step_at_baseline_batch_s"),
    *("speedup", "speedup_low", "speedup_high", "ideal_speedup"),
    *METERS,
    "memory_bytes",
    *(f"{component}_ns" for component in COMPONENTS),
    *("cpu_others", "reference_s", "company", "speedup_at_baseline_pace"),
    *("final_loss", "held_out_loss", "lowest_held_out_loss", "largest_loss_difference"),
    "broken",
    "devices",
)


def rows(view: Overview) -> Iterator[list[Any]]:
    """One row a run in drawing order; what was not measured is empty."""
    for row in view.rows:
        yield [row.run.pk, no_formula(row.entry.whole or row.entry.label), row.run.state, *_measured(row), *_tail(row)]


def _measured(row: Row) -> list[Any]:
    result, speed, step = row.entry.result, row.entry.speed, row.entry.own
    parts = row.entry.breakdown
    return [
        *((step.median, step.p10, step.p90, step.n) if step else [""] * 4),
        row.spec.train.global_batch,
        result.step.median if result else "",
        *([speed.ratio, *speed.interval] if speed else [""] * 3),
        row.entry.ideal,
        *("" if row.meters.get(name) is None else row.meters[name] for name in METERS),
        (result.memory_total if result else None) or "",
        *(parts.as_dict().values() if parts else [""] * len(COMPONENTS)),
    ]


def _tail(row: Row) -> list[Any]:
    entry, pace = row.entry, row.entry.pace
    values = [entry.others, *((pace.seconds, pace.company) if pace else (None, None)), entry.at_pace]
    summary = row.run.summary
    values += [summary.get("final_loss"), (summary.get("held_out") or {}).get("loss"), row.held_out]
    values += [row.parity.largest if row.parity and row.parity.steps else None]
    values += ["; ".join(row.run.injected), row.run.devices]
    return ["" if value is None else value for value in values]
