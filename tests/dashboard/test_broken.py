"""Runs with injected faults: requested in the form, and marked wherever they are shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.form import break_it, spec_fields
from dashboard.runs.models import Run
from dashboard.runs.page.tiles import tiles
from dashboard.studies.models import Study
from parallel_core.faults import KINDS
from tests.dashboard import factory
from tests.dashboard.streamed_body import received
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db
STRAGGLER = [{"kind": "straggler", "rank": 1, "factor": 3}]
SENTENCE = "Straggler: rank 1 takes 3 times as long to compute"


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_survives_the_way_through_the_form(kind: str) -> None:
    fault = KINDS[kind].model_validate({}).model_dump(mode="json")
    (back,) = spec_fields.to_spec(spec_fields.from_spec({"inject": [fault]}))["inject"]
    assert KINDS[kind].model_validate(back) == KINDS[kind].model_validate({})


def test_the_fields_of_a_fault_are_shown_while_it_is_switched_on() -> None:
    for kind, fault in break_it.KINDS.items():
        for name in fault.fields():
            assert spec_fields.shown_for(f"inject.{kind}.{name}") == {"data-shown-for": f"inject__{kind} true"}
        assert spec_fields.shown_for(f"inject.{kind}") == {}, "the switch itself always is"


def test_no_fault_is_asked_for_by_default(member: Client) -> None:
    assert "inject" not in spec_fields.to_spec(spec_fields.from_spec({}))
    page = member.get("/runs/new/")
    (group,) = (section for section in page.context["form"].sections() if section.group.key == break_it.SECTION)
    assert not group.open
    assert break_it.NOTE in page.content.decode()


def test_a_run_is_broken_as_the_form_says(member: Client) -> None:
    data = filled(parallel__pp="2", inject__straggler="on", inject__straggler__rank="1", inject__straggler__factor="3")
    assert member.post("/runs/new/", data).status_code == 302
    run = Run.objects.get()
    assert run.spec["inject"] == [{"kind": "straggler", "rank": 1, "factor": 3.0}]
    assert run.injected == [SENTENCE]
    clone = member.get(reverse("runs:clone", args=(run.pk,))).context["form"]
    assert clone["inject__straggler"].value() is True
    assert clone["inject__straggler__factor"].value() == "3"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inject__straggler__rank": "4"}, "inject__straggler__rank"),
        ({"inject__straggler__factor": "1"}, "inject__straggler__factor"),
        ({"inject__straggler__factor": "x"}, "inject__straggler__factor"),
        ({"inject__unbalanced_cut": "on"}, "inject__unbalanced_cut"),
    ],
)
def test_a_fault_that_does_not_fit_is_said_at_its_field(member: Client, changes: dict[str, str], field: str) -> None:
    page = member.post("/runs/new/", filled(inject__straggler="on", **changes))
    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]


def test_the_badge_is_wherever_the_run_is(member: Client, alice: Any) -> None:
    study = Study.objects.create(name="Broken ones", owner=alice, kind="matrix")
    healthy = factory.finished(alice, {"pp": 2}, study=study)
    run = factory.finished(alice, {"pp": 2}, study=study, inject=STRAGGLER)
    badge = f'data-state="broken" title="{SENTENCE}"'
    listed = member.get("/runs/").content.decode()
    assert listed.count(badge) == 1
    whole = member.get(f"/runs/{run.pk}/").content.decode()
    assert f"<span>broken on purpose: {SENTENCE}</span>" in whole, "one part, or a phone sets it in columns"
    assert 'data-state="broken"' not in member.get(f"/runs/{healthy.pk}/").content.decode()
    for address in (f"/studies/{study.pk}/", f"/compare/?runs={healthy.pk},{run.pk}"):
        page = member.get(address).content.decode()
        assert page.count(f'data-broken="{run.pk}"') == 1
        assert SENTENCE in page
    report = member.get(f"/studies/{study.pk}/report/").content.decode()
    assert SENTENCE in report
    assert ", broken</th>" in report

    record = member.get(f"/api/v1/runs/{run.pk}").json()["data"]
    assert record["broken"] == [SENTENCE]
    assert SENTENCE in received(member.get("/runs/export.csv")).decode()


def test_memory_that_a_fault_holds_is_not_in_the_prediction_and_the_tile_says_so(alice: Any) -> None:
    hog = {"kind": "memory_hog", "rank": 0, "mib": 64}
    notes = [tiles(factory.finished(alice, {"pp": 2}, inject=[one]))[-1].note for one in (hog, *STRAGGLER)]
    notes.append(tiles(factory.queued(alice, {"pp": 2}, inject=[hog]))[-1].note)
    assert [note.count(" MiB without the fault “Memory hog”") for note in notes] == [1, 0, 1]


def test_the_spec_tab_and_a_comparison_say_the_fault_in_the_words_of_the_page(member: Client, alice: Any) -> None:
    healthy, run = factory.finished(alice, {"pp": 2}), factory.finished(alice, {"pp": 2}, inject=STRAGGLER)
    tab = member.get(f"/runs/{run.pk}/?tab=spec").content.decode()
    title, _, words = SENTENCE.partition(": ")
    assert title in tab and tab.count(words) > member.get(f"/runs/{run.pk}/?tab=logs").content.decode().count(words)
    assert "straggler:rank" not in tab
    (line,) = member.get(f"/compare/?runs={healthy.pk},{run.pk}&baseline={healthy.pk}").context["differing"]
    assert (line.field, list(line.values)) == ("inject", ["none", SENTENCE])


def test_a_number_is_not_broken_from_its_unit_on_the_pages_of_a_broken_run(member: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2}, inject=[{"kind": "slow_data", "ms": 20}])
    unbroken = '<span class="whole">20 ms</span> late'
    for path in (f"/runs/{run.pk}/", f"/compare/?runs={run.pk},{run.pk}"):
        assert unbroken in member.get(path).content.decode(), path


def test_two_faults_are_one_badge(member: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2})
    run.injected = ["one", "another"]
    run.save()
    assert member.get("/runs/").content.decode().count('data-state="broken" title="one; another"') == 1
