"""Checkpoints that found no room on their worker's disk, while training went on."""

from __future__ import annotations

import re
from typing import Any

from dashboard.live.announce import announce
from dashboard.runs import resuming, states
from dashboard.runs.attempts_read import attempt_of
from dashboard.runs.models import Attempt, Checkpoint, Event, Run
from parallel_core.analysis.quantities import count_text, step_text, steps_text

KIND = "left_out"
NO_SPACE = "No space left on device"
"""The operating system's message about a full disk."""
QUOTA = "quota exceeded"
"""In that about a disk that has room, of which its user may have no more."""
_FIRST = re.compile(r" after (\d[\d\s]*)")
"""In the text of an event, the steps of the first checkpoint that it tells of."""


def note(attempt: Attempt, worker: str, header: dict[str, Any]) -> None:
    """Records it among the run's events; of several in a row all in one, as a full disk may leave out thousands."""
    step, train, run = header["step"], attempt.run.spec.get("train", {}), attempt.run
    every, last = int(train.get("checkpoint_every") or 0), int(train.get("steps") or 0)
    before = _newest(run, attempt)
    found = _found(step, _FIRST.search(before.text) if before else None, worker)
    due = every > 0 and step % every == 0 and step < last and not header["last"]
    more = f" Training goes on; the next one is tried after {steps_text(min(step + every, last))}." if due else ""
    if header["last"]:
        more = " The run was ending, so no other one was tried."
    text = f"{found}: {header['why']}.{more}"
    if before is None:
        return states.record(run, KIND, text, attempt)
    Event.objects.filter(pk=before.pk).update(text=text)
    announce(run.pk, run.study_id, "state", "events")


def _found(step: int, first: re.Match[str] | None, worker: str) -> str:
    if first is None:
        return f"The checkpoint after {steps_text(step)} found no room on {worker} and was left out"
    begin = count_text(int("".join(first[1].split())))
    return f"The checkpoints after {begin} to {steps_text(step)} found no room on {worker} and were left out"


def _newest(run: Run, attempt: Attempt | None) -> Event | None:
    """What tells of the attempt's newest checkpoints if they were left out; None if one was written since."""
    newest = Event.objects.filter(run=run, kind=KIND, attempt=attempt).order_by("-pk").first()
    if newest is None or Checkpoint.objects.filter(run=run, at__gte=newest.at).exists():
        return None
    return newest


def warning(run: Run) -> str:
    """What to say on top of the page of a run under way whose newest checkpoint was left out; else ''. An earlier
    attempt may have written elsewhere, and come further than the newest one has by now."""
    newest = _newest(run, attempt_of(run))
    if newest is None:
        return ""
    there = resuming.sound(run)
    lost = f"Everything after {step_text(there[-1])} would be lost" if there else "No checkpoint is kept yet"
    if QUOTA in newest.text:
        return f"{newest.text} {lost}; `quota -s` there says how much its user may have on that disk."
    room = "Fleet says how much room its disk has, and `df -i` there how many more files it takes"
    return f"{newest.text} {lost}; {room}."
