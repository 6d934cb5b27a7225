"""Seconds until a loss is reached: one bar a run, and the ratio to the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart, row_height, row_labels
from dashboard.charts.theme import line_of, var
from parallel_core.analysis.quantities import (
    listed_text,
    percent_text,
    plural_text,
    ratio_text,
    seconds_text,
    significant,
)

NOBODY = "0 runs have reached the loss."
SHOWN = 3
"""So many runs are named in a title."""
NARROW = 1.6
"""On a phone, times as much of the axis: the bars' labels take more of its width."""
COLUMNS = ("run", "least loss", "steps to it", "seconds to it", "speedup", "disturbed")


@dataclass(frozen=True)
class TargetChart(Chart):
    """`title` says who is first. `rest` is the title where a sentence above the chart already says that: who never
    reaches the loss, else who is last."""

    rest: str = ""


class Reach(NamedTuple):
    """When a run's smoothed loss reached the target: `step` and `seconds` from the end of the first step, None if it
    never did.

    `least` = its lowest smoothed loss, None where it has fewer losses than are averaged;
    `others` = the share of one of its devices that other processes used, if they disturbed the run; else 0. `goes_on` =
    it still trains, so that it may reach the target later.
    """

    label: str
    family: str
    least: float | None
    step: int | None
    seconds: float | None
    baseline: bool = False
    others: float = 0.0
    goes_on: bool = False
    updates: int = 1
    """Updates of each weight a step; 0 where stages differ in it."""


def chart(
    runs: Sequence[Reach], target: float | None, smoothed_over: int, pauses: str = "", *, warned: bool = False
) -> TargetChart:
    """`pauses` says in the source line what the seconds leave out; `warned`: whether the page says before the title
    that others disturbed these runs."""
    base = next((run.seconds for run in runs if run.baseline), None)
    there = [run for run in runs if run.seconds is not None]
    longest = max((run.seconds or 0.0 for run in there), default=0.0)
    noisy = next((run for run in there if run.others), None)
    room = longest * (1.55 if noisy else 1.35) or 1.0
    figure = {
        "data": [_bars(runs, base)] if there else [],
        "layout": theme.layout(
            row_height(len(runs)),
            bargap=0.35,
            xaxis=theme.axis("seconds", range=[0, room]),
            meta={"narrow": {"xaxis": {"range": [0, NARROW * room]}}},
            yaxis=theme.rows_axis(row_labels([run.label for run in runs])),
        ),
    }
    goal = "a loss" if target is None else f"loss {significant(target, 4)}"
    subtitle = f"Step times added up from the second step to {goal}, in s; losses averaged over {smoothed_over} steps"
    if noisy is not None:
        subtitle += f"; cross-hatched = disturbed, +{percent_text(noisy.others)} = of one device used by others"
    reach = f"{plural_text(len(runs), 'run')} {'reaches' if len(there) == 1 or len(runs) == 1 else 'reach'}"
    source = f"measured, {len(there)} of {reach} it; work between steps is left out{pauses}"
    rows, title = [_row(run, base) for run in runs], _title(runs, target, warned)
    return TargetChart("target", title, subtitle, source, figure, COLUMNS, rows, _rest(runs, target))


def _bars(runs: Sequence[Reach], base: float | None) -> dict[str, Any]:
    """A bar for each run that reaches the target, in the row that it has among all runs."""
    there = [(row, run) for row, run in enumerate(runs) if run.seconds is not None]
    fills = [line_of(run.family) for _, run in there]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [row for row, _ in there],
        "x": [run.seconds for _, run in there],
        "text": [_said(run, base) for _, run in there],
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"color": var("ink"), "size": 12},
        "marker": {
            "color": fills,
            "pattern": theme.hatches(["x" if run.others else "" for _, run in there], fills),
        },
        "customdata": [run.step for _, run in there],
        "hovertemplate": "%{x:.2f} s, step %{customdata}<extra></extra>",
    }


def _said(run: Reach, base: float | None) -> str:
    seconds = run.seconds or 0.0
    ratio = f", {ratio_text(base / seconds)}" if base and seconds and not run.baseline else ""
    others = f"  +{percent_text(run.others)}" if run.others else ""
    return f"{seconds_text(seconds, zeros=True)}{ratio}{others}"


def _title(runs: Sequence[Reach], target: float | None, warned: bool) -> str:
    there = [run for run in runs if run.seconds is not None]
    if target is None or not there:
        over = runs and target is not None and not any(run.goes_on for run in runs)
        return f"No run reaches loss {significant(target or 0.0, 4)}." if over else NOBODY
    best = min(there, key=lambda run: run.seconds or 0.0)
    base = next((run for run in there if run.baseline), None)
    first = f"{best.label} reaches loss {significant(target, 4)} in {seconds_text(best.seconds or 0.0)}"
    if base is None or base is best or not best.seconds:
        behind = f", before {plural_text(len(there) - 1, 'other')}" if len(there) > 1 else ""
        return f"{first}{behind}{'' if warned else _disturbed(best)}."
    ratio = ratio_text((base.seconds or 0.0) / best.seconds)
    noisy = "" if warned else _disturbed(best, base)
    return f"{first}, {ratio} the speed of {base.label}{_more_updates(best, base)}{noisy}."


def _more_updates(run: Reach, base: Reach) -> str:
    """Says where one updates its weights more often, which changes a loss more than the time of a step does."""
    if not run.updates or not base.updates or run.updates == base.updates:
        return ""
    return f", with {plural_text(run.updates, 'update')} a step instead of {base.updates}"


def _rest(runs: Sequence[Reach], target: float | None) -> str:
    """See TargetChart.rest; the title where nobody reaches the loss."""
    there = [run for run in runs if run.seconds is not None]
    if target is None or not there:
        return _title(runs, target, warned=False)
    goal = f"loss {significant(target, 4)}"
    if len(there) < len(runs):
        missing = [run for run in runs if run.seconds is None]
        names = [run.label for run in missing[:SHOWN]] + [f"{len(missing) - SHOWN} more"] * (len(missing) > SHOWN)
        was = "is not reached yet" if any(run.goes_on for run in missing) else "was not reached"
        return f"{goal.capitalize()} {was} by {listed_text(names)}."
    first, last = (pick(there, key=lambda run: run.seconds or 0.0) for pick in (min, max))
    said = f"{last.label} reaches {goal} last, in {seconds_text(last.seconds or 0.0)}"
    steps = plural_text(last.step or 0, "step")
    return f"{said} and {steps}; {first.label} needs {first.step}." if last is not first else f"{said} and {steps}."


def _disturbed(*runs: Reach) -> str:
    """Says which of these runs other processes disturbed; '' if none."""
    noisy = [f"{run.label} ({percent_text(run.others)} of one device)" for run in runs if run.others]
    return f"; others disturbed {' and '.join(noisy)}" if noisy else ""


def _row(run: Reach, base: float | None) -> list[str]:
    disturbed = percent_text(run.others) if run.others else ""
    lowest = "too few losses" if run.least is None else significant(run.least, 4, zeros=True)
    if run.seconds is None:
        no = "not yet" if run.goes_on else "never"
        return [run.label, lowest, no, no, "", disturbed]
    ratio = ratio_text(base / run.seconds) if base and run.seconds else ""
    return [
        run.label,
        lowest,
        str(run.step),
        seconds_text(run.seconds, zeros=True),
        ratio,
        disturbed,
    ]
