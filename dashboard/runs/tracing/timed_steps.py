"""Which steps of a run are timed, and what they took."""

from __future__ import annotations

import numpy as np

from dashboard.runs.attempts_read import attempts_of
from dashboard.runs.metrics import Series, parts_of, series
from dashboard.runs.models import Run
from parallel_core.analysis.stats import Stats, summarise
from parallel_core.observe.records import POINT
from parallel_core.spec import RunSpec


def timed_values(run: Run, name: str = "step_time", points: Series | None = None) -> np.ndarray:
    """A series of rank 0 in the timed steps: without warm-up, also after a resume, and without the metered extra step
    after the last. `points` = all of that series, if it has been read."""
    points = points or series(run, name)
    return points.value[_is_timed(run, points.step)]


def _is_timed(run: Run, steps: np.ndarray) -> np.ndarray:
    """For each of the steps whether it is timed."""
    spec = RunSpec.stored(run.spec)
    timed = (steps >= spec.train.warmup_steps) & (steps < spec.train.steps)
    for attempt in attempts_of(run):
        first = attempt.begins.get("step") or 0
        warm_until = min(first + spec.train.warmup_steps, spec.train.steps - 1)
        timed &= (steps < first) | (steps >= warm_until)
    return timed


def timed_by_attempt(run: Run) -> dict[int, np.ndarray]:
    """The POINT rows of rank 0's step times in the timed steps, by the number of the attempt that they hold from;
    attempts without any are left out."""
    parts = parts_of(run, "step_time")
    points = np.concatenate([np.empty(0, POINT), *(own for _, own in parts)])
    numbers = np.repeat([number for number, _ in parts], [len(own) for _, own in parts])
    timed = _is_timed(run, points["step"])
    return {int(number): points[timed & (numbers == number)] for number in np.unique(numbers[timed])}


def timed(run: Run, points: Series | None = None) -> Stats | None:
    """Statistics of the timed steps' seconds so far; None before the first. `points` as for `timed_values`."""
    values = timed_values(run, points=points)
    return summarise(values) if len(values) else None
