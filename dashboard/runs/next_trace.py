"""The next step of a running run, traced because somebody wants to see it: the wish, and what became of it.

The page writes the wish on the row; the controller chooses a step a little ahead (`due`) and tells the workers; their
ranks trace it (parallel_core.observe.asked). A wish that came too late for its step is over: it can be made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone

from dashboard.accounts.roles import may_change
from dashboard.runs import profiles, selectors
from dashboard.runs.models import Run, State

LEAD_S = 2.0
"""What an order needs to reach every rank of every host, generously."""
LEAST_AHEAD = 2
"""Steps: the newest one known is already over when it is known."""
LATE_STEPS = 50
"""So many steps behind it, the spans of a traced step have long arrived."""


@dataclass(frozen=True)
class Status:
    """What the page says; `pending` = a wish is under way, so that another one has to wait."""

    sentence: str = ""
    pending: bool = False
    address: str = ""


def possible(run: Run) -> bool:
    """A run that trains: one that writes text has no steps."""
    return run.state == State.RUNNING and not run.wish


def request(*, run: Run, user: Any, profile: bool) -> bool:
    """Asks for it; False where the run is not running or another wish is under way. Raises PermissionDenied."""
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may trace its next step.")
    if not possible(run) or status(run).pending:
        return False
    changes = {"trace_asked_at": timezone.now(), "trace_step": None, "trace_profile": profile}
    return bool(Run.objects.filter(pk=run.pk, state=State.RUNNING).update(**changes))


def due(run: Run) -> int | None:
    """The step that can be traced on all ranks from now on; None before its timed steps, and where it ends sooner."""
    if run.step is None or not run.step_time:
        return None
    step = run.step + LEAST_AHEAD + ceil(LEAD_S / run.step_time)
    return step if step < int(run.spec["train"]["steps"]) else None


def status(run: Run) -> Status:
    """Of the newest wish; empty where there was none."""
    if run.trace_asked_at is None:
        return Status()
    step = run.trace_step
    if step is None:
        return Status("A step will be traced as soon as one can be.", run.state == State.RUNNING)
    if run.trace_profile and any(found.number == step and found.openable for found in profiles.listed(run)):
        return Status(f"Step {step} was profiled.", address="?tab=ranks#details")
    if not run.trace_profile and step in selectors.traced_steps(run):
        return Status(f"Step {step} was traced.", address=f"?step={step}")
    how = " with torch.profiler" if run.trace_profile else ""
    if run.state == State.RUNNING and (run.step or 0) < step + LATE_STEPS:
        return Status(f"Step {step} will be traced{how}; the run is at step {run.step or 0}.", True)
    return Status(f"Step {step} had gone by before every rank knew of it: ask again.")
