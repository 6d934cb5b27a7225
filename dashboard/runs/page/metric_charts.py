"""Charts of a run's Metrics tab: one for each series. A series of stages has a line for each stage, the loss one for
held-out samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dashboard.charts import loss, theme
from dashboard.charts.chart import Chart
from dashboard.json_values import finite_list
from dashboard.runs import selectors
from dashboard.runs.metrics import BETWEEN
from dashboard.runs.models import Run
from dashboard.runs.page.metric_rows import Metric, metrics_of
from dashboard.runs.samples import samples_shift
from parallel_core.analysis.quantities import step_text
from parallel_core.layout import Layout
from parallel_core.plan.strategy import family
from parallel_core.spec import RunSpec

BUCKETS = 600
METRIC_PX = 240
AROUND = ("title", "source", "columns", "rows")
"""What a page shows around a chart of a series, fields of Chart."""
DASHES = ("solid", "dash", "dot")
"""Of stages, which share a hue."""


def points_since(run: Run, step: int, steps: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What `metrics` would add: for each line with points after `step` these, and what stands around its chart: title,
    source, and the table's columns and rows. The lines of a chart with several have keys such as `staleness:1`; those
    among `steps` are asked for from another step on.

    Points before it are not read, so two things are left to whoever has them: the source does not count them as drawn,
    and in `rows` the last of COLUMNS is the least of the points that were read. `thinned` lines do not tell what their
    points stand for: the chart is to be fetched again.
    """
    out: dict[str, Any] = {}
    shift = samples_shift(run)
    for metric in metrics_of(run):
        lines = _lines(run, metric)
        since = [(steps or {}).get(_key(metric, line), step) for line in lines]
        read = [
            _in_unit(metric, selectors.grown(run, line.series, line.rank, at, pauses=False))
            for line, at in zip(lines, since, strict=True)
        ]
        new = [selectors.after(own, at).thinned(BUCKETS) for (own, *_), at in zip(read, since, strict=True)]
        if not any(len(points.step) for points in new):
            continue
        chart = _metric(run, metric, [[part.thinned(BUCKETS) for part in parts] for parts in read], shift)
        around = {name: getattr(chart, name) for name in AROUND}
        grown = [(line, points) for line, points in zip(lines, new, strict=True) if len(points.step)]
        out |= {_key(metric, line): around | _points(points) for line, points in grown}
    return out


def _key(metric: Metric, line: _Line) -> str:
    return metric.name if line.number is None else f"{metric.name}:{line.number}"


def _points(points: selectors.Series) -> dict[str, Any]:
    return {
        "step": points.step.tolist(),
        "time": points.time.tolist(),
        "value": finite_list(points.value),
        "thinned": points.means is not None,
    }


def metrics(run: Run) -> list[Chart]:
    """One chart for each series of the run, thinned to a chart's width."""
    begun = beginnings(run)  # before the points: if these are of a newer attempt, a page fetches them once more
    shift = samples_shift(run)
    found = (
        (metric, [_with_replaced(run, metric, line) for line in _lines(run, metric)]) for metric in metrics_of(run)
    )
    return [_metric(run, metric, parts, shift, begun[metric.name]) for metric, parts in found]


def beginnings(run: Run) -> dict[str, str]:
    """`selectors.beginnings` of each chart of `metrics`, those of its lines with commas between them; '' for a line
    without points."""
    lines = {metric.name: _lines(run, metric) for metric in metrics_of(run)}
    every = [line for own in lines.values() for line in own]
    found = selectors.beginnings(run, {line.series for line in every}, {line.rank for line in every})
    return {name: ",".join(found.get((line.series, line.rank), "") for line in own) for name, own in lines.items()}


class _Line(NamedTuple):
    """A line of a metric's chart: of what, the series and the rank whose points they are, and its number (of a stage)
    where the chart has several."""

    label: str
    series: str
    rank: int = 0
    number: int | None = None


def _lines(run: Run, metric: Metric) -> list[_Line]:
    """The lines of the metric's chart: at most as many stages as one figure tells apart."""
    if metric.held_out:
        return [_Line("trained", metric.name, number=0), _Line("held out", metric.held_out, number=1)]
    if not metric.by_stage:
        return [_Line(run.label or run.name, metric.name)]
    layout = Layout.of(RunSpec.stored(run.spec))
    drawn = range(min(layout.stages, loss.MAX_LINES))
    return [_Line(f"stage {stage}", metric.name, layout.rank(layout.place(stage)), stage) for stage in drawn]


def _with_replaced(run: Run, metric: Metric, line: _Line) -> list[selectors.Series]:
    """The points of a line, thinned to a chart's width; behind them, those of each earlier attempt that were trained
    again. All in the unit of the chart."""
    return _in_unit(metric, selectors.series_and_replaced(run, line.series, line.rank, BUCKETS, pauses=False))


def _in_unit(metric: Metric, read: tuple[selectors.Series, list[selectors.Series]]) -> list[selectors.Series]:
    found, replaced = read
    return [part.times(metric.scale) for part in (found, *replaced)]


def _metric(
    run: Run, metric: Metric, parts: Sequence[Sequence[selectors.Series]], shift: int | None, begins: str = ""
) -> Chart:
    """The chart of the points of `_with_replaced`, line by line of `_lines`; `shift` = samples_shift of the run."""
    lines, found = _lines(run, metric), [own for own, *_ in parts]
    begun = min((float(own.time[0]) for own in found if len(own.time)), default=None)
    curves = [_curve(run, line, own, begun or 0.0, shift) for line, own in zip(lines, found, strict=True)]
    older = [
        _curve(run, line, part, begun or 0.0, shift)
        for line, (_, *replaced) in zip(lines, parts, strict=True)
        for part in replaced
    ]
    made = loss.chart(
        curves,
        f"{metric.title}: {_range(metric, found)}",
        metric.measured + _undrawn(run, metric, lines) + _paused(found),
        key=metric.name,
        unit=metric.unit,
        of="lines",
        replaced=older,
    )
    numbers = [line.number for line, own in zip(lines, found, strict=True) if len(own.value)]
    told = {"t0": begun, "begins": begins, "per_step": curves[0].samples_per_step}
    _for_script(made, metric, told | ({"lines": numbers} if lines[0].number is not None else {}))
    return _coloured(made, metric, len(lines if lines[0].number is None else numbers))


def _for_script(made: Chart, metric: Metric, told: Mapping[str, Any]) -> None:
    """Gives the figure its height and axis, and, in `meta`, what the script of the page needs to redraw it."""
    layout = made.figure["layout"]
    layout["height"] += METRIC_PX - loss.HEIGHT
    if metric.from_zero:
        layout["yaxis"]["rangemode"] = "tozero"
    layout["meta"] |= {**told, "least": [row[-1] for row in made.rows]}


def _coloured(made: Chart, metric: Metric, lines: int) -> Chart:
    """The chart with the colours and columns of a metric; `lines` = the number of its lines that are drawn."""
    if metric.by_stage:
        return replace(made, subtitle="", columns=("stage", *loss.COLUMNS[1:]))
    # A single line needs no hue of its own, nor do two of one quantity: they have the accent colour.
    for trace in made.figure["data"][:lines]:
        trace["line"] |= {"color": theme.var("accent"), "dash": trace["line"]["dash"] if metric.held_out else "solid"}
    _mark_evaluations(made.figure["data"], metric)
    return replace(made, subtitle="", columns=("samples", *loss.COLUMNS[1:]) if metric.held_out else made.columns)


def _mark_evaluations(traces: Sequence[dict[str, Any]], metric: Metric) -> None:
    """Gives the line of held-out samples, whose points are few and means of many samples, a symbol at each, and leaves
    it out of smoothing."""
    for trace in traces if metric.held_out else ():
        if trace["name"] == "held out":
            marks = {"mode": "lines+markers", "marker": {"color": theme.var("accent"), "size": 6}}
            trace |= marks | {"meta": {**trace.get("meta", {}), "whole": True}}


def _undrawn(run: Run, metric: Metric, lines: Sequence[_Line]) -> str:
    """Says of how many stages there is a line, where not of all."""
    stages = RunSpec.stored(run.spec).parallel.stages
    return f"; {len(lines)} of {stages} stages drawn" if metric.by_stage and len(lines) < stages else ""


def _paused(found: Sequence[selectors.Series]) -> str:
    """Says that the seconds of the chart, as a study's, leave out the time between attempts, where a later one went on
    from points of an earlier one."""
    return f"; {BETWEEN}" if any(own.attempts > 1 for own in found) else ""


def _curve(run: Run, line: _Line, points: selectors.Series, begun: float, shift: int | None) -> loss.Curve:
    """The line of the points; seconds count from `begun`."""
    spec = RunSpec.stored(run.spec)
    return loss.Curve(
        label=line.label,
        step=points.step,
        seconds=points.time - begun,
        value=points.value,
        total=points.total,
        samples_per_step=spec.train.global_batch,
        samples_shift=shift,
        family=family(spec),
        means=points.means,
        dash="" if line.number is None else DASHES[line.number % len(DASHES)],
    )


def _range(metric: Metric, found: Sequence[selectors.Series]) -> str:
    if not any(own.total for own in found):
        return "no point yet"
    if metric.held_out:
        return ", held out ".join(_newest(metric, [own]) for own in found if own.total)
    newest = _newest(metric, found)
    if metric.by_stage:
        return newest
    values = found[0].value
    if len(values) > 1 and (values == values[0]).all():
        return f"{metric.said(float(values[0]))} at every step"
    return f"{newest}, first {metric.said(float(values[0]))}"


def _newest(metric: Metric, found: Sequence[selectors.Series]) -> str:
    """The newest value; of several lines the least and the greatest."""
    ends = [own for own in found if len(own.step)]
    values, step = [float(own.value[-1]) for own in ends], max(int(own.step[-1]) for own in ends)
    words = dict.fromkeys(metric.said(value) for value in (min(values), max(values)))
    return f"{' to '.join(words)} at {step_text(step)}"
