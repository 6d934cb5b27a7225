"""Checkpoints that found no room on their worker's disk, while training went on."""

from __future__ import annotations

from typing import Any

from dashboard.runs import resuming, states
from dashboard.runs.attempts_read import attempt_of
from dashboard.runs.models import Attempt, Checkpoint, Event, Run
from parallel_core.analysis.quantities import step_text, steps_text

KIND = "left_out"


def note(attempt: Attempt, worker: str, header: dict[str, Any]) -> None:
    """Records it among the run's events."""
    step, train = header["step"], attempt.run.spec.get("train", {})
    every, last = int(train.get("checkpoint_every") or 0), int(train.get("steps") or 0)
    found = f"The checkpoint after {steps_text(step)} found no room on {worker} and was left out: {header['why']}."
    due = every > 0 and step % every == 0 and step < last
    more = f" Training goes on; the next one is tried after {steps_text(min(step + every, last))}." if due else ""
    states.record(attempt.run, KIND, found + more, attempt)


def warning(run: Run) -> str:
    """What to say on top of the page of a run under way whose newest checkpoint was left out; else ''. An earlier
    attempt may have written elsewhere, and come further than the newest one has by now."""
    newest = Event.objects.filter(run=run, kind=KIND, attempt=attempt_of(run)).order_by("-pk").first()
    if newest is None or Checkpoint.objects.filter(run=run, at__gte=newest.at).exists():
        return ""
    there = resuming.sound(run)
    lost = f"Everything after {step_text(there[-1])} would be lost" if there else "There is none yet"
    return f"{newest.text} {lost}; Fleet says how much room its disk has."
