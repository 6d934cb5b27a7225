"""A run made from another one says of which, what it changes, and is compared with it."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.api.models import Scope
from dashboard.ledger.models import Prediction
from dashboard.runs import origin, services
from dashboard.runs.form import spec_fields
from dashboard.runs.models import Run
from dashboard.runs.submission import Submission
from dashboard.studies import joining
from tests.dashboard import factory
from tests.dashboard.plain import unmarked
from tests.dashboard.test_api import bearer, post

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("two_hosts")]


@pytest.fixture
def source(alice: Any) -> Run:
    return factory.queued(alice, name="first")


def flat(page: str) -> str:
    """The words of the page, with one space between them."""
    return re.sub(r"\s+", " ", unmarked(page))


def sent(member: Client, address: str, **changes: str) -> Run:
    """Opens the form at the address, changes it, and queues it."""
    form = member.get(address).context["form"]
    values = {field.html_name: field.value() for field in form}
    posted = {name: value for name, value in values.items() if value is not None and value is not False}
    answer = member.post(reverse("runs:new"), {**posted, **changes})
    assert answer.status_code == 302, answer.context["form"].errors
    return Run.objects.latest("pk")


def test_a_clone_says_what_it_changes_of_which_run_and_is_compared_with_it(member: Client, source: Run) -> None:
    clone = sent(member, f"/runs/{source.pk}/clone", train__lr="0.01", train__steps="7")
    assert clone.based_on == source
    page = member.get(f"/runs/{clone.pk}/").content.decode()
    rate, steps = (spec_fields.ENTRIES[f"train.{name}"].label for name in ("lr", "steps"))
    before = source.spec["train"]
    said = f"Changes first: {steps} {before['steps']} → 7; {rate} {before['lr']} → 0.01."
    assert said in flat(page)
    assert f'href="/compare/?runs={source.pk},{clone.pk}" id="compare"' in page
    assert f'href="/compare/?runs={source.pk}" id="compare"' in member.get(f"/runs/{source.pk}/").content.decode()


def test_the_same_spec_once_more_is_said_and_many_changes_are_counted(member: Client, source: Run) -> None:
    same = sent(member, f"/runs/{source.pk}/clone")
    assert "The same spec as first, once more." in flat(member.get(f"/runs/{same.pk}/").content.decode())
    changes = {
        f"train__{name}": "9" for name in ("seed", "steps", "lr", "weight_decay", "clip_norm", "checkpoint_every")
    }
    found = origin.origin_of(sent(member, f"/runs/{source.pk}/clone", **changes))
    assert found is not None
    assert (len(found.changes), found.more) == (origin.SHOWN, len(changes) - origin.SHOWN)


def test_a_run_of_a_what_if_is_based_on_the_run_that_was_asked_about(member: Client, source: Run) -> None:
    query = urlencode({"spec": json.dumps({"parallel": {"dp": 2}}), "whatif": source.pk})
    changed = sent(member, f"{reverse('runs:new')}?{query}")
    assert changed.based_on == source


def test_a_run_added_to_a_study_is_based_on_its_baseline(member: Client, alice: Any) -> None:
    study = factory.study(alice)
    form = member.get(reverse("studies:add", args=(study.pk,))).context["form"]
    assert form["based_on"].value() == study.baseline_id
    assert study.baseline is not None
    request: Submission = {"spec": study.baseline.spec, "based_on": study.baseline_id}
    assert joining.submit(owner=alice, study=study, request=request).based_on == study.baseline


def test_a_run_outlives_the_one_it_was_made_from(member: Client, alice: Any, source: Run) -> None:
    clone = sent(member, f"/runs/{source.pk}/clone")
    prepared = services.prepare(owner=alice, requests=[{"spec": source.spec, "based_on": source.pk}])
    source.delete()
    clone.refresh_from_db()
    assert clone.based_on is None
    assert member.get(f"/runs/{clone.pk}/").context["origin"] is None
    assert services.write_one(prepared).based_on is None  # deleted while it was being checked


@pytest.mark.parametrize(("named", "status"), [(None, 201), (0, 201), (999, 422)])
def test_the_api_names_it_and_refuses_a_run_that_there_is_not(
    client: Client, alice: Any, source: Run, named: int | None, status: int
) -> None:
    based_on = source.pk if named == 0 else named
    body = {"spec": source.spec, "based_on": based_on}
    headers = bearer(alice, Scope.SUBMIT)
    answer = post(client, body, headers)
    assert answer.status_code == status
    found = answer.json()
    if status == 422:
        assert found["error"]["fields"] == {"based_on": "There is no run 999."}
    else:
        assert found["data"]["based_on"] == based_on


@pytest.mark.parametrize("given", ["", "x", "999999"])
def test_a_form_whose_origin_means_nothing_is_queued_without_one(member: Client, source: Run, given: str) -> None:
    assert sent(member, f"/runs/{source.pk}/clone", based_on=given).based_on is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "52 ms a step"),
        ({"measured_seconds": 0.05}, "52 ms a step, 4 % too high"),
        ({"measured_seconds": 0.05, "disturbed": True}, "52 ms a step"),
        (
            {"measured_seconds": 0.05, "disturbed": True, "left_out": "Unmeasured."},
            "52 ms a step, 4 % too high",
        ),
        ({"measured_seconds": 0.05, "elsewhere": True}, "52 ms a step"),
    ],
)
def test_what_a_replay_predicted_stands_on_the_page_of_the_run(
    member: Client, alice: Any, source: Run, more: dict[str, Any], words: str
) -> None:
    run = factory.queued(alice)
    assert origin.foretold(run) is None
    Prediction.objects.filter(run=run).update(replayed=source, replayed_seconds=0.052, **more)
    assert f"What if of first predicted {words}." in flat(member.get(f"/runs/{run.pk}/").content.decode())
