"""What if, held against what came: a run that another one's replay speaks of has that prediction in the ledger, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.analyst.process import Work
from dashboard.ledger.models import Prediction
from dashboard.runs import traces
from dashboard.runs.models import Run, State
from dashboard.runs.spreading import hosts_of
from parallel_core.schedule.traits import CUSTOM, flushes
from parallel_core.simulate.replay import Change, changed, replay
from parallel_core.spec import RunSpec

LOOKED_AT = 20
"""Newest runs on as many devices among which the one to replay is looked for."""
_FREE = frozenset({"steps", "warmup_steps", "seed"})
"""Training fields that say nothing of a step's time."""


def recover() -> None:
    """A look that ended its analyst is not taken again."""


def take() -> Work | None:
    """Claims the oldest prediction that is still to be looked at, as a lane of the analyst; None without one."""
    said = Prediction.objects.filter(to_replay=True).select_related("run").order_by("pk").first()
    if said is None:
        return None
    if Prediction.objects.filter(pk=said.pk, to_replay=True).update(to_replay=False) and not said.settled_at:
        _look(said)
    return iter(())


def _look(said: Prediction) -> None:
    """Keeps what is found, unless the run was quicker: nothing is foreseen of a step that was measured."""
    try:
        found = foreseen(RunSpec.stored(said.run.spec), said.hosts)
    except ValueError:  # of an older version
        return
    if found is not None:
        still = Prediction.objects.filter(pk=said.pk, settled_at__isnull=True)
        still.update(replayed=found[0], replayed_seconds=found[1])


def conceivable(spec: RunSpec) -> bool:
    """Whether a step of `spec` can be what a what-if leads to."""
    split = spec.parallel
    return split.pp > 1 and split.schedule != CUSTOM and flushes(split.schedule) and not spec.inject


def foreseen(spec: RunSpec, hosts: Sequence[str] = ()) -> tuple[Run, float] | None:
    """The newest run that differs from `spec` by its schedule or micro-batches alone and whose ranks were on the same
    `hosts` ([]: on one), and the seconds of a step of `spec` by the replay of its traced one. None where there is no
    such run, or its step cannot be replayed."""
    if not conceivable(spec):
        return None
    same = {"state": State.SUCCEEDED, "devices": spec.parallel.world, "broken": []}
    done = Run.objects.filter(**same).exclude(prediction__disturbed=True)
    for run in done.order_by("-id").defer("summary")[:LOOKED_AT]:
        change = _change(run.spec, spec) if _hosts(run) == list(hosts) else None
        if change is not None and (seconds := _replayed(run, change)) is not None:
            return run, seconds
    return None


def _hosts(run: Run) -> list[str]:
    return hosts_of(run.attempts.order_by("-number").first())


def _change(given: dict[str, Any], spec: RunSpec) -> Change | None:
    """What leads from the run of `given` to `spec`; None where a what-if does not, or nothing differs."""
    try:
        before = RunSpec.stored(given)
    except ValueError:  # of an older version
        return None
    if before.model != spec.model or _fixed(before) != _fixed(spec) or before.inject or before.parallel.pp == 1:
        return None
    other, split = before.parallel, spec.parallel
    change = Change(
        schedule=split.schedule if split.schedule != other.schedule else "",
        micro_batches=split.micro_batches if split.micro_batches != other.micro_batches else 0,
        early_gradients=split.early_gradients and not other.early_gradients,
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
