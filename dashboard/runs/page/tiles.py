"""The four tiles of a run's page: the newest value as text, and the whole series as a small line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dashboard.ledger.models import Prediction
from dashboard.ledger.selectors import prediction_of
from dashboard.runs import selectors
from dashboard.runs.memory_limits import memory_limit
from dashboard.runs.models import ENDED, Run
from dashboard.runs.page.fix import BREAKS
from dashboard.runs.page.verdict import target_of
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    listed_text,
    percent_text,
    rate_text,
    seconds_text,
    significant,
    step_text,
)
from parallel_core.plan.memory import counted, worst_stage
from parallel_core.spec import RunSpec

WIDTH, HEIGHT = 120, 32
BUCKETS = 60
METERS = ("mfu", "hfu")


@dataclass(frozen=True)
class Tile:
    """`points` is an SVG polyline in a box of WIDTH x HEIGHT, '' if there are fewer than two points.

    `outline` = length of the outlined bar of the prediction, up to WIDTH; None if nothing is predicted.
    """

    key: str
    title: str
    value: str
    note: str = ""
    points: str = ""
    outline: float | None = None
    solid: float | None = None
    """The same for the filled bar of the measurement."""
    level: float | None = None
    """Height of the prediction in the box of `points`, which are then drawn on a scale that contains it."""


def tiles(run: Run) -> list[Tile]:
    """Loss, step time, tokens a second, and memory of the worst rank against its limit."""
    loss, rate = (selectors.series(run, name, buckets=BUCKETS) for name in ("loss", "tokens_per_s"))
    return [
        Tile("loss", "Loss", _last(loss, lambda v: significant(v, 4)), _loss_note(run, loss), line(loss.value)),
        _step_time(run),
        Tile("tokens_per_s", "Throughput", *_throughput(run, rate), line(rate.value)),
        _memory(run),
    ]


def line(values: np.ndarray, predicted: float | None = None) -> str:
    """`x,y x,y ...` of the finite values, the least at the bottom; a constant is a line in the middle."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return ""
    x, y = np.linspace(1, WIDTH - 1, len(finite)), _heights(finite, finite, predicted)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _heights(of: np.ndarray, values: np.ndarray, predicted: float | None) -> np.ndarray:
    """The y of each of `of`, on a scale from the least to the greatest of `values` and the prediction."""
    scale = values if predicted is None else np.append(values, predicted)
    low, high = float(scale.min()), float(scale.max())
    part = (of - low) / (high - low) if high > low else np.full(len(of), 0.5)
    return HEIGHT - 2 - part * (HEIGHT - 4)


def _last(series: selectors.Series, text: object) -> str:
    return str(text(float(series.value[-1]))) if len(series.value) else "–"  # type: ignore[operator]


def _fall(series: selectors.Series) -> str:
    return (
        f"from {significant(float(series.value[0]), 4)} at {step_text(series.step[0])}" if len(series.value) > 1 else ""
    )


def _loss_note(run: Run, loss: selectors.Series) -> str:
    """Where the loss began; where held-out samples are evaluated, the last held-out loss instead."""
    held_out = selectors.series(run, "eval_loss") if RunSpec.stored(run.spec).train.held_out else None
    if held_out is None or not len(held_out.value):
        return _fall(loss)
    return f"held out {significant(float(held_out.value[-1]), 4)} at {step_text(held_out.step[-1])}"


def _step_time(run: Run) -> Tile:
    """The steps as a line and the prediction as a dashed one; until there is a line, the prediction as an outline."""
    seconds, said = selectors.series(run, "step_time"), prediction_of(run)
    predicted = said.seconds if said else None
    shown = seconds.thinned(BUCKETS).value
    points = line(shown, predicted)
    value, note = _step_times(run, seconds, said)
    outline = level = None
    if predicted is not None:
        outline = None if points else float(WIDTH)
        finite = shown[np.isfinite(shown)]
        level = float(_heights(np.array([predicted]), finite, predicted)[0]) if points else None
    return Tile("step_time", "Step time", value, note, points, outline=outline, level=level)


def _step_times(run: Run, seconds: selectors.Series, said: Prediction | None) -> tuple[str, str]:
    """The newest step and the median of the timed steps; once the run has ended, the median first, as elsewhere. The
    prediction stands beside them."""
    timed, newest = selectors.timed(run, seconds), _last(seconds, seconds_text)
    predicted = _predicted(run, said, timed.median if timed else None)
    if timed is None:
        return newest, predicted
    median, of = seconds_text(timed.median), f"(n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{count_text(timed.n)})"
    if run.state in ENDED:
        value, note = median, f"median {of}, the last {newest}"
    else:
        value, note = newest, f"median {median} {of}"
    return value, ", ".join(filter(None, (note, predicted)))


def _predicted(run: Run, said: Prediction | None, median: float | None) -> str:
    """`predicted 83 ms` with its likely range, or once steps are timed, with how far off it was; '' without one.

    The difference is no error of the prediction where the run was broken on purpose, disturbed, or on other hosts.
    """
    if said is None or not said.seconds:
        return ""
    text = f"predicted {seconds_text(said.seconds)}"
    if median is None:
        return f"{text} ({said.likely_words})" if said.likely else text
    if not median or run.injected or said.disturbed:
        return text
    return f"{text}, {off_text(said.seconds / median - 1)}"


def off_text(error: float) -> str:
    """A relative error in words: `4 % too high`."""
    return f"{percent_text(abs(error))} too {'high' if error > 0 else 'low'}"


def _throughput(run: Run, rate: selectors.Series) -> tuple[str, str]:
    """(value, `MFU 41 %, HFU 55 %`): of the newest step, or once the run has ended, of the median step."""
    meters = run.summary.get("meters") or {}
    if meters.get("tokens_per_s"):
        shares = {name: meters.get(name) for name in METERS}
        value = rate_text(meters["tokens_per_s"], target_of(run))
    else:
        shares = {name: selectors.newest(run, name) for name in METERS}
        value = _last(rate, lambda v: rate_text(v, target_of(run)))
    return value, ", ".join(f"{name.upper()} {percent_text(share)}" for name, share in shares.items() if share)


def _unpredicted(spec: RunSpec) -> str:
    """` without the fault “Memory hog”`: what no prediction counts that the run was made to hold; '' if nothing."""
    titles = [f"“{one.title}”" for one in spec.inject if one.kind in BREAKS["out_of_memory"]]
    return f" without the fault {listed_text(titles)}" if titles else ""


def _memory(run: Run) -> Tile:
    """Measured peak as a solid bar, prediction as an outline; the full width is the larger of them, or the limit if
    that is larger and known."""
    spec = RunSpec.stored(run.spec)
    plan = worst_stage(spec) if counted(spec) else None
    records, title, held = selectors.memory(run), "Memory, worst rank", _unpredicted(spec)
    worst = max(records.values(), key=lambda record: record.peak_total, default=None)
    if worst is None:
        said = f"predicted {bytes_text(plan.total)}{held} on rank {plan.rank}" if plan else "not predicted"
        when = "not measured" if run.state in ENDED else "measured on a step that is not timed"
        return Tile("memory", title, "–", f"{said}; {when}", outline=WIDTH if plan else None)
    limit = memory_limit(run, selectors.attempt_of(run))
    most = max(plan.total if plan else 0, worst.peak_total, limit or 0)
    parts = [
        f"rank {worst.rank}",
        f"{percent_text(worst.peak_total / limit)} of {bytes_text(limit)}" if limit else "",
        f"predicted {bytes_text(plan.total)}{held}" if plan else "",
    ]
    note = ", ".join(part for part in parts if part)
    predicted = WIDTH * plan.total / most if plan else None
    measured = WIDTH * worst.peak_total / most
    return Tile("memory", title, bytes_text(worst.peak_total), note, outline=predicted, solid=measured)
