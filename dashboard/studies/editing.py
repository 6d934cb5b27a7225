"""What users change of a study that exists: its name and notes, and where its queued runs go."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.runs import queueing
from dashboard.runs import services as runs
from dashboard.runs.priority import Priority
from dashboard.runs.services import Invalid
from dashboard.studies.models import Study
from dashboard.studies.services import name_errors


def edit(
    *, study: Study, user: Any, name: str, notes: str, run_on: str | None = None, priority: Priority | None = None
) -> Study:
    """Renames a study, replaces its notes, and changes where its runs may be placed and their priority, unless these
    are None (`queueing.change_study`): all of it or nothing.

    Raises PermissionDenied, or Invalid with what is wrong at every field.
    """
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may change it.")
    words = runs.clean_notes(notes)
    errors = name_errors(name) | runs.notes_errors(words)
    with transaction.atomic():
        try:
            study = queueing.change_study(study=study, user=user, run_on=run_on, priority=priority)
        except Invalid as refused:
            errors |= refused.field_errors
        if errors:
            raise Invalid(errors)
        study.name, study.notes = name.strip(), words
        study.save(update_fields=("name", "notes"))
    return study
