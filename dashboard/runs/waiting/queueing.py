"""What users change of runs that are queued: where they run, and their priority. Of a study, of all its queued runs."""

from __future__ import annotations

from itertools import product
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.fleet.run_on import RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import states
from dashboard.runs.models import Run, State
from dashboard.runs.services import Invalid
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import run_on as places
from dashboard.runs.waiting.fleet_checks import fleet_check
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study
from parallel_core.spec import RunSpec
from workers.contract import task_of

KIND = "queue"
"""The kind of the Event of a change."""
NOT_QUEUED = "The run is not queued any more."
DELETED = "The study has been deleted."
NOT_YOURS = "Only the run's owner and admins may change its place in the queue."
NOT_YOUR_STUDY = "Only the study's owner and admins may change where it runs."


def changeable(run: Run) -> bool:
    """Whether its place and priority matter: it is queued, and nobody has cancelled it."""
    return run.state == State.QUEUED and run.cancel_requested_at is None


def refusal(user: Any, run: Run) -> str:
    """Why the user may not change the run's place, that of its whole study, as a sentence; '' if they may."""
    if not may_change(user, run):
        return NOT_YOURS
    return "" if run.study is None or may_change(user, run.study) else NOT_YOUR_STUDY


def may_put_first(user: Any, run: Run) -> bool:
    """Whether to offer the user to give the run high priority."""
    return run.priority < Priority.HIGH and not levels.refusal(user, Priority.HIGH) and not refusal(user, run)


@again_after_deadlock
def change(*, run: Run, user: Any, run_on: str | None = None, priority: Priority | None = None) -> Run:
    """Changes where a queued run may be placed, and its priority; returns it as it is then. Of a run of a study, those
    of the study and of all its queued runs, as they are to be compared. None leaves a value as it is; one that stays
    the same is not checked.

    Raises PermissionDenied, and Invalid at `run_on` for devices on which one of them could never run, at `priority` for
    a level that the user may not give.
    """
    if refused := refusal(user, run):
        raise PermissionDenied(refused)
    with transaction.atomic():
        study = _locked(run.study_id)
        queued = _queued(pk=run.pk) if run.study_id is None else _queued(study=run.study_id)
        now = next((one for one in queued if one.pk == run.pk), None)
        if now is None:
            raise Invalid({places.FIELD: NOT_QUEUED})
        _change(now, study, queued, user, run_on, priority)
    return now


@again_after_deadlock
def change_study(*, study: Study, user: Any, run_on: str | None = None, priority: Priority | None = None) -> Study:
    """Changes where the runs of a study may be placed, and their priority: of all that are queued, and of those that
    join it later or are run again. Returns the study as it is then. Raises as `change`."""
    if not may_change(user, study):
        raise PermissionDenied(NOT_YOUR_STUDY)
    with transaction.atomic():
        locked = _locked(study.pk)
        if locked is None:
            raise Invalid({places.FIELD: DELETED})
        _change(locked, locked, _queued(study=study.pk), user, run_on, priority)
    return locked


def follow(study: Study, runs: list[Run], owner: Any) -> None:
    """Gives runs that the owner is about to write the place and the priority of the `study`, whose row is locked."""
    for run in runs:
        run.run_on, run.priority = study.run_on, levels.allowed(owner, study.priority)


def _locked(study: int | None) -> Study | None:
    """The row of a study, until the transaction ends: a run that joins meanwhile is then among the queued ones, or
    reads the new values."""
    return None if study is None else Study.locked(study)


def _queued(**which: Any) -> list[Run]:
    """The queued runs that are changed together, locked."""
    queued = Run.objects.filter(state=State.QUEUED, cancel_requested_at=None, **which)
    return list(queued.select_for_update().order_by("pk"))


def _change(
    of: Run | Study, study: Study | None, queued: list[Run], user: Any, run_on: str | None, priority: Priority | None
) -> None:
    """Changes the values of a run or a study, and with it those of the `study` and of the `queued` runs."""
    on, unread = places.read(of.run_on if run_on is None else run_on)
    level = Priority(of.priority) if priority is None else priority
    errors = {places.FIELD: unread or (_refusal(of, queued, on) if str(on) != of.run_on else "")}
    errors[levels.FIELD] = levels.refusal(user, level) if level != of.priority else ""
    if wrong := {field: said for field, said in errors.items() if said}:
        raise Invalid(wrong)
    _write(of, study, queued, user, on, level)


def _refusal(of: Run | Study, queued: list[Run], on: RunOn) -> str:
    """Why one of the queued runs could never be placed on those devices, by its own name unless it is the run asked
    for; '' if all could. Runs with equally many ranks that begin anew alike are checked once."""
    if not on:
        return ""
    if any(run.between for run in queued):
        return "It times messages between two workers, and runs on both."
    fleet, seen = FleetSnapshot.now().narrowed(on), set[tuple[object, ...]]()
    if not queued:
        return places.unknown(fleet)
    for one in sorted(queued, key=lambda run: run != of):
        train = one.spec.get("train", {})
        reads = (train.get("corpus"), train.get("weights"), one.resume_run_id, one.resume_step)
        does = (train.get("device"), bool(train.get("checkpoint_every")), task_of(one.task))
        shape = (one.devices, one.host_count, *does, *reads)
        if shape in seen:
            continue
        seen.add(shape)
        check = fleet_check(
            RunSpec.stored(one.spec), fleet, begins=one.resumes_from, host_count=one.host_count, task=task_of(one.task)
        )
        if check.errors:
            said = " ".join(check.errors.values())
            whose = f"“{one.name}”" if isinstance(of, Study) else f"“{one.name}” of the same study"
            return said if one == of else f"{whose}: {said}"
    return ""


def _write(of: Run | Study, study: Study | None, queued: list[Run], user: Any, on: RunOn, priority: Priority) -> None:
    """Writes the values of `of` that change to the runs and to their study, with an event of each."""
    parts = [f"to run on {on.text}, instead of {of.chosen_devices.text}"] if str(on) != of.run_on else []
    if priority != of.priority:
        parts.append(f"at {priority.word} priority, instead of {Priority(of.priority).word}")
    if not parts:
        return
    values: dict[str, str | int] = {"run_on": str(on)} if str(on) != of.run_on else {}
    values |= {"priority": priority} if priority != of.priority else {}
    Run.objects.filter(pk__in=[one.pk for one in queued]).update(**values)
    for one, (field, value) in product([*queued, *([study] if study else [])], values.items()):
        setattr(one, field, value)
    if study is not None:
        study.save(update_fields=tuple(values))
        text = f"{user.get_username()} queued its runs {' and '.join(parts)}."
        study.events.create(kind=KIND, text=text, actor=user)
    together = ", as all queued runs of its study" if study is not None else ""
    said = f"{user.get_username()} queued it {' and '.join(parts)}{together}."
    states.record_all([(one, said) for one in queued], KIND, actor=user)
