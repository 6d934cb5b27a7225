"""Filters of the API by a name: one that nothing can have is refused, as an empty list would say that there is none."""

from __future__ import annotations

from django.contrib.auth import get_user_model

from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.studies import joining
from dashboard.studies.models import Study
from dashboard.studies.new.kinds import KINDS, UNOFFERED
from parallel_core.analysis.quantities import listed_text


def require_owner(name: str) -> None:
    """Raises Invalid at `owner` if there is no such user; '' stands for all of them."""
    if name and not get_user_model().objects.filter(username=name).exists():
        raise Invalid({"owner": "There is no user of this name."})


def require_study(pk: int | None) -> Study | None:
    """Returns the study; None where none is named. Raises Invalid at `study` if there is no such study."""
    found = None if pk is None else Study.objects.filter(pk=pk).first()
    if pk is not None and found is None:
        raise Invalid({joining.FIELD: f"There is no study {pk}."})
    return found


def require_run(pk: int | None, field: str) -> int | None:
    """Returns the number; None where no run is named. Raises Invalid at `field` if there is no such run."""
    if pk is not None and not Run.objects.filter(pk=pk).exists():
        raise Invalid({field: f"There is no run {pk}."})
    return pk


def require_kind(name: str) -> None:
    """Raises Invalid at `kind` if studies are never of this kind; '' stands for all kinds."""
    kinds = (*KINDS, *UNOFFERED)
    if name and name not in kinds:
        raise Invalid({"kind": f"There is no such kind of study; those here are {listed_text(kinds)}."})
