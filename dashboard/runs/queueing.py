"""What users change of runs that are queued: where they run, and their priority. Of a study, of all its queued runs."""

from __future__ import annotations

from itertools import product
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.control.dispatch import resume_from
from dashboard.fleet.run_on import RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import priority as levels
from dashboard.runs import run_on as places
from dashboard.runs import states
from dashboard.runs.models import Run, State
from dashboard.runs.priority import Priority
from dashboard.runs.services import Invalid
from dashboard.runs.submission import fleet_check
from parallel_core.spec import RunSpec
from workers.contract import task_of

KIND = "queue"
"""The kind of the Event of a change."""
NOT_QUEUED = "The run is not queued any more."


def changeable(run: Run) -> bool:
    """Whether its place and priority matter: it is queued, and nobody has cancelled it."""
    return run.state == State.QUEUED and run.cancel_requested_at is None


def may_put_first(user: Any, run: Run) -> bool:
    """Whether to offer the user to give the run high priority."""
    return run.priority < Priority.HIGH and not levels.refusal(user, Priority.HIGH) and may_change(user, run)


def change(*, run: Run, user: Any, run_on: str, priority: Priority) -> Run:
    """Changes where a queued run may be placed, and its priority; returns it as it is then. Of a run of a study, those
    of the study and of all its queued runs, as they are to be compared. A value that stays the same is not checked.

    Raises PermissionDenied, and Invalid at `run_on` for devices on which one of them could never run, at `priority` for
    a level that the user may not give.
    """
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may change its place in the queue.")
    with transaction.atomic():
        fellows = list(_fellows(run).select_for_update(of=("self",)))
        now = next((one for one in fellows if one.pk == run.pk), None)
        if now is None:
            raise Invalid({places.FIELD: NOT_QUEUED})
        on, unread = places.read(run_on)
        errors = {places.FIELD: unread or (_refusal(now, fellows, on) if str(on) != now.run_on else "")}
        errors[levels.FIELD] = levels.refusal(user, priority) if priority != now.priority else ""
        if wrong := {field: said for field, said in errors.items() if said}:
            raise Invalid(wrong)
        _write(now, fellows, user, on, priority)
    return now


def _fellows(run: Run) -> Any:
    """The queued runs that are changed together."""
    queued = Run.objects.filter(state=State.QUEUED, cancel_requested_at=None).select_related("study").order_by("pk")
    return queued.filter(pk=run.pk) if run.study_id is None else queued.filter(study=run.study_id)


def _refusal(run: Run, fellows: list[Run], on: RunOn) -> str:
    """Why one of the runs could never be placed on those devices, by its own name if it is another one; '' if all
    could. Runs with equally many ranks that begin anew alike are checked once."""
    if not on:
        return ""
    if run.between:
        return "It times messages between two workers, and runs on both."
    fleet, seen = FleetSnapshot.now().narrowed(on), set[tuple[object, ...]]()
    for one in sorted(fellows, key=lambda fellow: fellow.pk != run.pk):
        train = one.spec.get("train", {})
        shape = (one.devices, one.host_count, train.get("device"), train.get("corpus"), one.resume_run_id)
        if shape in seen:
            continue
        seen.add(shape)
        check = fleet_check(
            RunSpec.stored(one.spec), fleet, begins=resume_from(one), host_count=one.host_count, task=task_of(one.task)
        )
        if check.errors:
            said = " ".join(check.errors.values())
            return said if one.pk == run.pk else f"“{one.name}” of the same study: {said}"
    return ""


def _write(run: Run, fellows: list[Run], user: Any, on: RunOn, priority: Priority) -> None:
    """Writes the values to the runs, `run` among them, and to their study, with an Event for each run."""
    parts = [f"to run on {on.text}, instead of {run.chosen_devices.text}"] if str(on) != run.run_on else []
    if priority != run.priority:
        parts.append(f"at {priority.word} priority, instead of {Priority(run.priority).word}")
    if not parts:
        return
    values: dict[str, str | int] = {"run_on": str(on)} if str(on) != run.run_on else {}
    values |= {"priority": priority} if priority != run.priority else {}
    Run.objects.filter(pk__in=[one.pk for one in fellows]).update(**values)
    for one, (field, value) in product([*fellows, *([run.study] if run.study else [])], values.items()):
        setattr(one, field, value)
    if run.study is not None:
        run.study.save(update_fields=tuple(values))
    together = ", as all queued runs of its study" if run.study is not None else ""
    said = f"{user.get_username()} queued it {' and '.join(parts)}{together}."
    states.record_all([(one, said) for one in fellows], KIND, actor=user)
