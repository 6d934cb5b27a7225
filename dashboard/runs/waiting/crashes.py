"""Runs whose own code crashes: a signal that a process gets from itself, not from outside."""

from __future__ import annotations

import re
import signal
from typing import Any

from dashboard.runs.models import Attempt

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
_SIGNAL = re.compile(r"was killed by signal (\d+)\b")
_STEP = re.compile(r" at step (\d+)\b| before its first step\b")


def signal_of(detail: str) -> int | None:
    """The signal of the crash that the detail of an end tells of; None where it tells of none."""
    found = _SIGNAL.search(detail)
    return int(found[1]) if found and int(found[1]) in CRASHES else None


def _crash_of(detail: str) -> tuple[int, str] | None:
    """Its `signal_of`, and the step ('' before the first); None where it tells of no crash, or not where."""
    number, place = signal_of(detail), _STEP.search(detail)
    return (number, place[1] or "") if number and place else None


def repeats(attempt: Attempt, detail: str) -> bool:
    """Whether the attempt, which ends with this detail, crashed as the attempt before it did, at the same step: so will
    the next one. Not of an abort of one over several hosts: NCCL's watchdog does that where another host is lost."""
    before: Any = Attempt.objects.filter(run=attempt.run_id, number=attempt.number - 1).values_list("detail", flat=True)
    crash = _crash_of(detail)
    if crash is None or (crash[0] == signal.SIGABRT and len(attempt.devices) > 1):
        return False
    return any(_crash_of(found) == crash for found in before)
