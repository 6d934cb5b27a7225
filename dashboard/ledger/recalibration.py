"""Recalibrates a profile's table to runs chosen by a user; the newest other runs are held out and show whether it
helped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from dashboard.accounts.guards import member_required
from dashboard.accounts.roles import may_change
from dashboard.fields import Form
from dashboard.ledger import records
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.numbers import number
from parallel_core.analysis.quantities import ratio_text, sentence_text
from parallel_core.profile.table import CostTable
from parallel_core.simulate.recalibrate import errors, factor_of, scaled
from parallel_core.spec import RunSpec

MOST_FITTED, MOST_HELD_OUT = 4, 8
SHOWN = 5
FROM_NOW_ON = "Runs are predicted with it from now on; the rows below keep what was predicted for them."
MAY_NOT = "Only the person who asked for a profile and admins may recalibrate its table."
MAY_NOT_UNDO = "Only the person who recalibrated a table and admins may undo that."
RULE = (
    f"Mark at most {MOST_FITTED} runs that one profile predicted: its table is made anew, to give their steps. "
    f"The newest {MOST_HELD_OUT} others stay out of the fit and say whether it helped."
)


def eligible() -> QuerySet[Prediction]:
    """Predictions that a table can be fitted to, newest first.

    They are from a profile in use, settled by a run on one host (links between hosts are not part of a profile) that
    nobody disturbed. Runs with deterministic kernels that were predicted from the usual ones, before these had
    profiles of their own, are left out: such a table cannot predict them (`profile.request.other_kernels`).
    """
    rows = records.settled().filter(
        profile__state=ProfileState.DONE, seconds__isnull=False, measured_seconds__gt=0, disturbed=False, hosts=[]
    )
    exact = {"run__spec__train__device": "cuda", "run__spec__train__deterministic": True}
    return rows.exclude(**exact, profile__spec__train__deterministic=False)


def among(rows: Sequence[Prediction]) -> set[int]:
    """Ids of those of `rows` that a table can be fitted to."""
    return set(eligible().filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))


class _Marked(forms.ModelMultipleChoiceField):
    """Rows by their numbers, none of which is more than the database can compare."""

    def clean(self, value: Any) -> Any:
        for key in value or ():
            if number(key) is None:
                raise forms.ValidationError(self.error_messages["invalid_choice"], code="invalid_choice")
        return super().clean(value)


class RecalibrationForm(Form):
    """The runs to which the table is fitted; all were predicted from one profile."""

    fit = _Marked(
        Prediction.objects.none(),
        label="Runs",
        error_messages={
            "required": "Mark the runs that the table is to be fitted to.",
            "invalid_choice": "A marked run cannot be used: it needs a predicted and an undisturbed measured step.",
        },
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["fit"].queryset = eligible()  # type: ignore[attr-defined]

    def clean_fit(self) -> list[Prediction]:
        rows = list(self.cleaned_data["fit"])
        if len(rows) > MOST_FITTED:
            raise forms.ValidationError(f"At most {MOST_FITTED} runs are fitted to; {len(rows)} are marked.")
        if len({row.profile_id for row in rows}) > 1:
            raise forms.ValidationError("The marked runs were predicted from different profiles; mark runs of one.")
        return rows


def recalibrated(rows: Sequence[Prediction], user: Any) -> Profile:
    """Creates and returns a new profile, which is used from now on. Raises PermissionDenied for anyone but the person
    who asked for the old one and admins, ValueError if no factor fits the runs."""
    base = rows[0].profile
    assert base is not None
    if not may_change(user, base):
        raise PermissionDenied(MAY_NOT)
    table = CostTable.model_validate(base.table)
    fitted = _measured(rows)
    factor = factor_of(table, fitted)
    made = scaled(table, factor)
    others = eligible().filter(profile=base).exclude(pk__in=[row.pk for row in rows])
    held_out = _measured(others[:MOST_HELD_OUT])
    groups = {"fitted": fitted, "held_out": held_out}
    return Profile.objects.create(
        worker=base.worker,
        asked_by=user,
        spec=base.spec,
        key=base.key,
        state=ProfileState.DONE,
        software=base.software,
        table=made.dump(),
        base=base,
        recalibration={
            "factor": factor * base.recalibration.get("factor", 1.0),  # of the profiled time, as it is told
            "runs": [row.run_id for row in rows],
            **{name: [_mean(table, runs), _mean(made, runs), len(runs)] for name, runs in groups.items()},
        },
        done_at=timezone.now(),
    )


def _measured(rows: Sequence[Prediction] | QuerySet[Prediction]) -> list[tuple[RunSpec, float]]:
    return [(RunSpec.stored(row.run.spec), float(row.measured_seconds or 0)) for row in rows]


def _mean(table: CostTable, runs: Sequence[tuple[RunSpec, float]]) -> float:
    return sum(map(abs, errors(table, runs))) / len(runs) if runs else 0.0


def sentence(profile: Profile) -> str:
    """`Computing takes 1.06x the profiled time. 2 fitted runs: mean error 5.8 % before, 0.1 % now. 7 held out: …`"""
    known = profile.recalibration
    first = f"Computing takes {ratio_text(known['factor'])} the profiled time."
    return " ".join([first, _errors(known["fitted"], "fitted to"), _errors(known["held_out"], "held out")])


def _errors(known: tuple[float, float, int], how: str) -> str:
    before, after, count = known
    if not count:
        return f"No runs were {how}."
    runs = f"{count} run{'s' if count > 1 else ''} {how}"
    return f"{runs}: mean error {before * 100:.1f} % before, {after * 100:.1f} % now."


def undone(profile: Profile, user: Any) -> bool:
    """Takes a recalibrated table back; returns whether it still counted. Raises PermissionDenied for anyone but the
    person who made it and admins."""
    if not may_change(user, profile):
        raise PermissionDenied(MAY_NOT_UNDO)
    used = Profile.objects.filter(pk=profile.pk, state=ProfileState.DONE)
    return bool(used.update(state=ProfileState.UNDONE, error=f"Undone by {user}."))


def latest(user: Any) -> list[tuple[Profile, str, bool]]:
    """Recalibrated profiles, newest first, with a sentence on each and whether `user` may undo it."""
    found = Profile.objects.exclude(recalibration={}).select_related("worker", "asked_by").defer("table")[:SHOWN]
    return [(one, sentence(one), one.state == ProfileState.DONE and may_change(user, one)) for one in found]


@require_POST
@member_required
def recalibrate(request: HttpRequest) -> HttpResponse:
    """Makes a new table from the profile of the marked runs."""
    form = RecalibrationForm(request.POST)
    if not form.is_valid():
        return _refused(request, " ".join(map(str, form.errors["fit"])))
    try:
        made = recalibrated(form.cleaned_data["fit"], request.user)
    except ValueError as error:
        return _refused(request, sentence_text(str(error)))
    messages.success(request, f"{sentence(made)} {FROM_NOW_ON}")
    return redirect("ledger:record")


def _refused(request: HttpRequest, why: str) -> HttpResponse:
    """Back to the page with its rows marked as before."""
    messages.error(request, why)
    return redirect(f"{reverse('ledger:record')}?{urlencode({'fit': request.POST.getlist('fit')}, doseq=True)}")


@require_POST
@member_required
def undo(request: HttpRequest, pk: int) -> HttpResponse:
    """Takes a recalibrated table back: of the others the newest is used. A second request changes nothing."""
    profile = get_object_or_404(Profile.objects.exclude(recalibration={}).defer("table"), pk=pk)
    if undone(profile, request.user):
        messages.success(request, f"{profile} is undone: runs are not predicted with it any more.")
    return redirect("ledger:record")
