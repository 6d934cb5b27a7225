"""What users change of a study that exists: its name and notes, and where its queued runs go."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.runs.name_tags_notes import changes_text, clean_notes, notes_errors
from dashboard.runs.services import Invalid
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study
from dashboard.studies.services import name_errors


@again_after_deadlock
def edit(
    *,
    study: Study,
    user: Any,
    name: str | None = None,
    notes: str | None = None,
    run_on: str | None = None,
    priority: Priority | None = None,
) -> Study:
    """Renames a study, replaces its notes, and changes where its runs may be placed and their priority
    (`queueing.change_study`), with events: all of it or nothing. None leaves a value as it is, also one changed since
    it was read.

    Raises PermissionDenied, or Invalid with what is wrong at every field.
    """
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may change it.")
    values = {} if name is None else {"name": name.strip()}
    values |= {} if notes is None else {"notes": clean_notes(notes)}
    errors = (name_errors(values["name"]) if name is not None else {}) | notes_errors(values.get("notes", ""))
    with transaction.atomic():
        try:
            study = queueing.change_study(study=study, user=user, run_on=run_on, priority=priority)
        except Invalid as refused:
            errors |= refused.field_errors
        if errors:
            raise Invalid(errors)
        before = {field: getattr(study, field) for field in values}
        for field, value in values.items():
            setattr(study, field, value)
        study.save(update_fields=tuple(values))
        if said := changes_text(before, values):
            study.events.create(kind="edited", text=f"{user.get_username()} {said}.", actor=user)
    return study
