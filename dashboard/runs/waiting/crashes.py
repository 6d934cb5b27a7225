"""Runs whose own code crashes: a signal that a process gets from itself, not from outside."""

from __future__ import annotations

import re
import signal
from typing import Any

from dashboard.runs.models import Attempt

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
_SIGNAL = re.compile(r"was killed by signal (\d+)\b")
_STEP = re.compile(r" at step (\d+)\b| before its first step\b")


def crash_of(detail: str) -> tuple[int, str] | None:
    """The signal of the crash that the detail of an end tells of, and the step ('' before the first); None where it
    tells of none, or not where."""
    number, place = _SIGNAL.search(detail), _STEP.search(detail)
    if number is None or place is None or int(number[1]) not in CRASHES:
        return None
    return int(number[1]), place[1] or ""


def repeats(attempt: Attempt, detail: str) -> bool:
    """Whether the attempt, which ends with this detail, crashed as the attempt before it did, at the same step: so will
    the next one."""
    before: Any = Attempt.objects.filter(run=attempt.run_id, number=attempt.number - 1).values_list("detail", flat=True)
    crash = crash_of(detail)
    return crash is not None and any(crash_of(found) == crash for found in before)
