"""The held-out losses of several runs, where any of them evaluates samples that it does not train on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dashboard.charts import loss
from dashboard.charts.chart import Chart
from dashboard.runs.metrics import left_out
from dashboard.studies.overview import figures
from dashboard.studies.overview.losses import Losses, held_out_of
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.quantities import last_samples, loss_text, step_text


def chart(view: Overview) -> dict[str, Chart]:
    """The chart by its key; {} where no run evaluates any."""
    rows = [row for row in view.rows if row.spec.train.held_out]
    if not rows:
        return {}
    read = held_out_of([row.run for row in rows], view.losses)
    rows = _lowest_first(rows, read)
    curves = [figures.curve(row, read.of(row.run), _begun(view, row)) for row in rows if row.run.pk in read.held]
    older = [
        figures.curve(row, read.replaced[row.run.pk], _begun(view, row)) for row in rows if row.run.pk in read.replaced
    ]
    sizes = sorted({row.spec.train.held_out for row in rows})
    source = f"measured: mean over {last_samples(sizes)} of the corpus"
    source += left_out(row.run for row in rows)
    top = figures.usual_top(view, read)
    said = {"key": "held_out", "unit": "held-out loss", "first": figures.first_ones(view)}
    made = loss.chart(curves, _title(rows, read), source, replaced=older, top=top, **said)
    for trace in made.figure["data"][: len(made.figure["data"]) - bool(older)]:  # few points, each a mean already
        symbol = trace.get("marker", {}).get("symbol", "triangle-up")
        marker = {"symbol": symbol, "size": 8, "color": trace["line"]["color"]}
        trace |= {"mode": "lines+markers", "marker": marker, "meta": {**trace.get("meta", {}), "whole": True}}
    return {"held_out": made}


def _begun(view: Overview, row: Row) -> float | None:
    """When the run's first loss was recorded, from which seconds count; None if there is none."""
    points = view.losses.of(row.run)
    return float(points["time"][0]) if len(points) else None


def _lowest_first(rows: Sequence[Row], read: Losses) -> list[Row]:
    """The rows with those that reached the lowest losses first, where not all can be drawn; each part in its order."""
    drawn = {row.run.pk for row in sorted(rows, key=lambda row: _lowest(row, read))[: loss.MAX_LINES]}
    return sorted(rows, key=lambda row: row.run.pk not in drawn)


def _lowest(row: Row, read: Losses) -> float:
    return float(np.min(_finite(row, read)["value"], initial=np.inf))


def _title(rows: Sequence[Row], read: Losses) -> str:
    """Which run reached the lowest, and when."""
    row = min(rows, key=lambda row: _lowest(row, read))
    if not len(points := _finite(row, read)):
        return "No held-out loss has arrived."
    at = int(points["value"].argmin())
    who = f" of {row.entry.marked}" if len(rows) > 1 else ""
    lowest = loss_text(float(points["value"][at]))
    return f"Held-out loss: the lowest is {lowest}{who}, at {step_text(int(points['step'][at]))}."


def _finite(row: Row, read: Losses) -> np.ndarray:
    points = read.of(row.run)
    return points[np.isfinite(points["value"])]
