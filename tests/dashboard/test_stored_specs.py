"""A stored spec that today's rules would refuse can still be viewed like any other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pydantic import ValidationError

from dashboard.runs.models import Run
from dashboard.runs.page.tabs import TABS
from dashboard.studies.models import Study
from parallel_core.rules import rule_error
from parallel_core.rules.checks import CHECKS
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.django_db
LATER = "parallel.pp=2 is refused by a rule that came later."


@pytest.fixture
def old(alice: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A pipeline run of a study whose spec a new rule refuses, next to a run that is still valid."""

    def refuse(spec: RunSpec) -> None:
        if spec.parallel.pp > 1:
            raise rule_error(("parallel.pp",), LATER)

    study = Study.objects.create(name="Before", owner=alice, kind="matrix")
    factory.finished(alice, {}, study=study)
    run = factory.finished(alice, {"pp": 2, "schedule": "1f1b", "micro_batches": 4}, study=study)
    monkeypatch.setattr("parallel_core.rules.checks.CHECKS", (*CHECKS, refuse))
    with pytest.raises(ValidationError, match="came later"):
        RunSpec.model_validate(run.spec)
    return run


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_of_it_is_there(member: Client, old: Run, tab: str) -> None:
    page = member.get(f"/runs/{old.pk}/?tab={tab}")
    assert page.status_code == 200 and TABS[tab] in page.content.decode()


def test_lists_and_comparisons_have_it(member: Client, old: Run) -> None:
    other = Run.objects.exclude(pk=old.pk).get()
    addresses = [
        "/runs/",
        f"/studies/{old.study_id}/",
        f"/studies/{old.study_id}/report/",
        f"/compare/?runs={other.pk},{old.pk}",
        "/planner/crossover/",
        "/planner/accuracy/",
        "/fleet/",
        "/runs/export.csv",
        f"/api/v1/runs/{old.pk}",
    ]
    for address in addresses:
        page = member.get(address)
        assert page.status_code == 200, address
        body = received(page) if page.streaming else page.content
        assert old.name in body.decode() or address in ("/planner/crossover/", "/planner/accuracy/", "/fleet/")


def test_a_clone_says_at_its_field_what_is_refused_now(member: Client, old: Run) -> None:
    page = member.get(reverse("runs:clone", args=(old.pk,)))
    form = page.context["form"]
    shown = {name: form[name].value() for name in form.fields}
    sent = {
        name: "on" if value is True else value
        for name, value in shown.items()
        if value not in (None, "") and value is not False
    }
    again = member.post("/runs/new/", sent)
    assert again.status_code == 422
    assert list(again.context["form"].errors) == ["parallel__pp"]
    assert "came later" in again.content.decode()
