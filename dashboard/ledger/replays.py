"""Predictions by replay: what a replay of another run says of a new run is kept and compared with its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.analyst.process import Work
from dashboard.ledger.models import Prediction
from dashboard.runs.models import Run, State
from dashboard.runs.places import together_of
from dashboard.runs.tracing import traces
from dashboard.runs.waiting.asking import requests
from dashboard.runs.waiting.spreading import chosen, several, workers_of
from parallel_core.schedule.traits import CUSTOM, flushes
from parallel_core.simulate.replay import Change, changed, replay
from parallel_core.spec import RunSpec

LOOKED_AT = 20
"""How many of the newest runs on as many devices are considered for a replay."""
_FREE = frozenset({"steps", "warmup_steps", "seed", "weights"})
"""Training fields that do not affect the time of a step."""


def recover() -> None:
    """Does nothing: a replay during which the analyst ended is not tried again."""


def take() -> Work | None:
    """Claims the oldest prediction that waits for a replay and computes it, as a lane of the analyst; None if there is
    none."""
    said = Prediction.objects.filter(to_replay=True).select_related("run").order_by("pk").first()
    if said is None:
        return None
    if Prediction.objects.filter(pk=said.pk, to_replay=True).update(to_replay=False) and not said.settled_at:
        _look(said)
    return iter(())


def _look(said: Prediction) -> None:
    """Stores the replayed prediction, unless the run was faster: a step already measured cannot be predicted."""
    (request,) = requests([said.run])
    workers = _workers(said.run) or said.hosts or chosen(request)
    try:
        found = foreseen(RunSpec.stored(said.run.spec), workers)
    except ValueError:  # stored by an older version
        return
    if found is not None:
        still = Prediction.objects.filter(pk=said.pk, settled_at__isnull=True)
        still.update(replayed=found[0], replayed_seconds=found[1])


def conceivable(spec: RunSpec) -> bool:
    """Whether a what-if of another run can lead to a step of `spec`."""
    split = spec.parallel
    return split.pp > 1 and split.schedule != CUSTOM and flushes(split.schedule) and not spec.inject


def foreseen(spec: RunSpec, workers: Sequence[str] = ()) -> tuple[Run, float] | None:
    """Returns the newest run whose replay predicts a step of `spec`, and the seconds predicted; None if there is none.

    That run differs from `spec` only in its schedule or micro-batches, and its ranks were on the same `workers`, one a
    rank ([], where they are not known: on any one host).
    """
    if not conceivable(spec):
        return None
    same = {"state": State.SUCCEEDED, "devices": spec.parallel.world, "injected": []}
    done = Run.objects.filter(**same).exclude(prediction__disturbed=True, prediction__left_out="")
    for run in done.order_by("-id").defer("summary")[:LOOKED_AT]:
        where = _workers(run)
        alike = where == list(workers) if workers else not several(where)
        change = _change(run.spec, spec) if alike else None
        if change is not None and (seconds := _replayed(run, change)) is not None:
            return run, seconds
    return None


def from_elsewhere(said: Prediction, workers: Sequence[str]) -> bool:
    """Whether the run that was replayed for `said` was on other hosts than `workers`, those of the predicted run."""
    return said.replayed is not None and bool(workers) and set(_workers(said.replayed)) != set(workers)


def _workers(run: Run) -> list[str]:
    return workers_of(run.attempts.order_by("-number").first())


def _change(given: dict[str, Any], spec: RunSpec) -> Change | None:
    """The change from the run with spec `given` to `spec`; None if no what-if leads there, or nothing differs."""
    try:
        before = RunSpec.stored(given)
    except ValueError:  # stored by an older version
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
    """Seconds of a step of `run` with the change: as many times its median as its typical step would take. Any other
    traced step may have been held up, by several times what a change makes."""
    trace = traces.typical(run)
    if trace is None or not trace.whole or together_of(run) > 1:  # a replay would give each rank a device of its own
        return None
    try:
        factor = replay(trace.trained, trace.measured, change).step / trace.measured.step
    except ValueError:  # too long, or not a whole step
        return None
    timed = (run.summary or {}).get("timed")
    return factor * (timed["median"] if timed else trace.measured.step / 1e9)
