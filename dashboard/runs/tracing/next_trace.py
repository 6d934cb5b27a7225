"""Traces the next step of a running run because somebody asked for it.

The page stores the request in the run's row; the controller chooses a step a little ahead (`due`) and sends it to the
workers; their ranks trace it (parallel_core.observe.trace_request). A request that reached a rank too late for its step
is over, and can be made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone

from dashboard.accounts.roles import may_change
from dashboard.runs import selectors
from dashboard.runs.models import Run, SeriesChunk, State
from dashboard.runs.tracing import profiles
from parallel_core.analysis.quantities import count_text, step_text
from parallel_core.observe.trace_request import HOWS, How

LEAD_S = 3.0
"""Seconds ahead: the age of the newest known step, and the time an order needs to reach every rank of every host."""
LEAST_AHEAD = 2
"""The fewest steps ahead, because the newest known step is already over."""
LATE_STEPS = 50
"""Once the run is this many steps past a traced step, its spans would have arrived."""
BUSY = "Nothing was asked: the run is not running, or a step is already waited for."
NO_ALLOCATOR = (
    "A memory snapshot is the history of CUDA's allocator, and this run is on CPU. "
    "Its Memory tab has the metered step: live tensors by category over time."
)


@dataclass(frozen=True)
class Status:
    """What the page says; `pending` = a request is under way, so that another one has to wait."""

    sentence: str = ""
    pending: bool = False
    address: str = ""


class Refused(ValueError):
    """Nothing was requested; the message says why."""


def choices(run: Run) -> tuple[How, ...]:
    """How the next step can be traced now; () for a run that generates text or times links: it has no steps."""
    if run.state != State.RUNNING or run.task:
        return ()
    return HOWS if _on_cuda(run) else ("spans", "profiler")


def request(*, run: Run, user: Any, how: How = "spans") -> None:
    """Requests a trace of the next step. Raises Refused, and PermissionDenied."""
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may trace its next step.")
    if how == "memory" and not _on_cuda(run):
        raise Refused(NO_ALLOCATOR)
    if how not in choices(run) or status(run).pending:
        raise Refused(BUSY)
    changes = {"trace_asked_at": timezone.now(), "trace_step": None, "trace_how": how}
    if not Run.objects.filter(pk=run.pk, state=State.RUNNING).update(**changes):
        raise Refused(BUSY)


def _on_cuda(run: Run) -> bool:
    return bool(run.spec["train"].get("device") == "cuda")


def due(run: Run) -> int | None:
    """The next step that can still be traced on all ranks; None before the timed steps, until a step of the attempt
    that is running is known, and if the run ends sooner."""
    if run.step is None or not run.step_time or not _under_way(run):
        return None
    step = run.step + LEAST_AHEAD + ceil(LEAD_S / run.step_time)
    return step if step < int(run.spec["train"]["steps"]) else None


def _under_way(run: Run) -> bool:
    """Whether `run.step` is of the attempt that is running, which may have begun far before the end of the last one."""
    return SeriesChunk.objects.filter(attempt__run=run, attempt__over=False).exists()


def status(run: Run) -> Status:
    """The status of the newest request; empty if there was none."""
    if run.trace_asked_at is None:
        return Status()
    step = run.trace_step
    if step is None:
        return Status("A step will be traced as soon as one can be.", run.state == State.RUNNING)
    if arrived := _arrived(run, step):
        return arrived
    how = {"profiler": " with torch.profiler", "memory": " with a memory snapshot"}.get(run.trace_how, "")
    if run.state == State.RUNNING and (run.step or 0) < step + LATE_STEPS:
        return Status(f"Step {count_text(step)} will be traced{how}; the run is at {step_text(run.step or 0)}.", True)
    return Status(f"Step {count_text(step)} had gone by before every rank knew of it: ask again.")


def _arrived(run: Run, step: int) -> Status | None:
    """Where to see the requested trace; None while it has not arrived."""
    if run.trace_how == "spans":
        there = selectors.was_traced(run, step)
        return Status(f"Step {count_text(step)} was traced.", address=f"?step={step}") if there else None
    memory = run.trace_how == "memory"
    kind = profiles.Kind.SNAPSHOT if memory else profiles.Kind.PROFILE
    if not any(found.number == step and found.openable for found in profiles.listed(run, kind)):
        return None
    if memory:
        return Status(f"The allocations of {step_text(step)} were recorded.", address="?tab=memory#snapshots")
    return Status(f"Step {count_text(step)} was profiled.", address="?tab=ranks#details")
