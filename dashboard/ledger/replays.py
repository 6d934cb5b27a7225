"""What if, held against what came: a run that another one's replay speaks of has that prediction in the ledger, too."""

from __future__ import annotations

from typing import Any

from dashboard.runs import traces
from dashboard.runs.models import Run, State
from parallel_core.schedule.traits import CUSTOM, flushes
from parallel_core.simulate.replay import Change, changed, replay
from parallel_core.spec import RunSpec

LOOKED_AT = 20
"""Newest runs on as many devices among which the one to replay is looked for."""
_FREE = frozenset({"steps", "warmup_steps", "seed"})
"""Training fields that say nothing of a step's time."""


def foreseen(spec: RunSpec) -> tuple[Run, float] | None:
    """The newest run that differs from `spec` by its schedule or micro-batches alone, and the seconds of a step of
    `spec` by the replay of its traced one. None where there is no such run, or its step cannot be replayed."""
    split = spec.parallel
    if split.pp == 1 or split.schedule == CUSTOM or not flushes(split.schedule) or spec.inject:
        return None
    done = Run.objects.filter(state=State.SUCCEEDED, devices=split.world, broken=[]).exclude(prediction__disturbed=True)
    for run in done.order_by("-id").defer("summary")[:LOOKED_AT]:
        change = _change(run.spec, spec)
        if change is not None and (seconds := _replayed(run, change)) is not None:
            return run, seconds
    return None


def _change(given: dict[str, Any], spec: RunSpec) -> Change | None:
    """What leads from the run of `given` to `spec`; None where a what-if does not, or nothing differs."""
    try:
        before = RunSpec.model_validate(given)
    except ValueError:  # of an older version
        return None
    if before.model != spec.model or _fixed(before) != _fixed(spec) or before.inject or before.parallel.pp == 1:
        return None
    other, split = before.parallel, spec.parallel
    change = Change(
        schedule=split.schedule if split.schedule != other.schedule else "",
        micro_batches=split.micro_batches if split.micro_batches != other.micro_batches else 0,
    )
    try:
        reached = change.makes_a_program and changed(before, change).parallel == split
    except ValueError:
        return None
    return change if reached else None


def _fixed(spec: RunSpec) -> dict[str, Any]:
    return spec.train.model_dump(exclude=set(_FREE))


def _replayed(run: Run, change: Change) -> float | None:
    trace = traces.trace(run, None)
    if trace is None or not trace.whole:
        return None
    try:
        return replay(trace.spec, trace.measured, change).step / 1e9
    except ValueError:  # too long, or no whole step of its own
        return None
