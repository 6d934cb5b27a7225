"""Cancelling several runs of the list at once: one confirmation, only permitted runs, and the list keeps its
filters.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.runs import cancelling
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.states import finish
from dashboard.studies import services as studies
from dashboard.studies.models import Study
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.test_list import make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def states(*runs: Run) -> list[str]:
    return [Run.objects.get(pk=run.pk).state for run in runs]


def test_the_ticked_that_can_be_are_cancelled_and_the_rest_is_said(client: Client, alice: Any, admin: Any) -> None:
    client.force_login(alice)
    mine, done, theirs = make(alice, "mine"), make(alice, "done", state="succeeded"), make(admin, "theirs")
    active, kept = make(alice, "active", state="running"), make(alice, "kept")
    asked = f"?tag=x&runs={mine.pk}&runs={done.pk}&runs={theirs.pk}&runs={active.pk}&runs=x&runs=999999"
    page = client.get(f"/runs/cancel{asked}")
    assert [run.name for run in page.context["runs"]] == ["mine", "active"]
    assert states(mine, active) == [State.QUEUED, State.RUNNING], "confirmation comes first"
    ids = [run.pk for run in (mine, done, theirs, active)]
    answer = client.post("/runs/cancel?tag=x", {"runs": ids}, follow=True)
    assert states(mine, done, theirs, kept) == [State.CANCELLED, State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert Run.objects.get(pk=active.pk).cancel_requested_at
    said = " ".join(map(str, answer.context["messages"]))
    assert said == "2 runs cancelled or asked to stop. 1 had ended already. 1 of others left as they are."


def test_it_leads_back_to_the_list_as_it_was_filtered(client: Client, alice: Any) -> None:
    client.force_login(alice)
    run = make(alice, "one", tags=["x"])
    listed = client.get("/runs/?tag=x&state=queued").content.decode()
    assert 'name="tag" value="x"' in listed and 'name="state" value="queued"' in listed
    page = client.get(f"/runs/cancel?tag=x&state=queued&runs={run.pk}&back=//elsewhere")
    back = page.context["back"]
    assert QueryDict(back.removeprefix("/runs/?")).dict() == {"tag": "x", "state": "queued"}
    done = client.post(f"/runs/cancel?tag=x&state=queued&runs={run.pk}", {"runs": [run.pk]})
    assert done.headers["Location"] == back
    nothing = client.get("/runs/cancel?tag=x")
    assert nothing.status_code == 302 and nothing.headers["Location"] == "/runs/?tag=x"


@pytest.mark.parametrize("by", ["page", "study"])
def test_devices_of_a_run_that_stops_at_once_start_no_other_that_is_to_be_cancelled(
    client: Client, worker: Worker, alice: Any, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    study, both = Study.objects.create(name="s", owner=alice), {"yard-a"}
    runs = [factory.queued(alice, study=study, position=position) for position in range(3)]
    (attempt,) = place_queued(both, both)
    request = cancelling.request_cancel

    def at_once(*, run: Run, user: Any) -> Run:
        asked = request(run=run, user=user)
        if run.pk == attempt.run_id:
            finish(attempt, "cancelled", "cancelled")
        list(place_queued(both, both))
        return asked

    monkeypatch.setattr(cancelling, "request_cancel", at_once)
    client.force_login(alice)
    if by == "page":
        client.post("/runs/cancel", {"runs": [run.pk for run in runs]})
    else:
        cancelled, _ = studies.cancel(study=study, user=alice)
        assert [run.pk for run in cancelled] == [run.pk for run in runs]
    assert states(*runs) == [State.CANCELLED] * 3 and Attempt.objects.count() == 1


def test_what_is_left_of_a_study_is_cancelled_from_its_page(client: Client, alice: Any, bob: Any) -> None:
    study = Study.objects.create(name="long", owner=alice, kind="matrix")
    done = factory.finished(alice, study=study)
    left = [factory.queued(alice, study=study) for _ in range(2)]
    elsewhere = make(alice, "elsewhere")
    client.force_login(alice)
    address = f"/runs/cancel?all_of={study.pk}"
    assert address in client.get(f"/studies/{study.pk}/").content.decode()
    page = client.get(address)
    assert [run.pk for run in page.context["runs"]] == [run.pk for run in left]
    assert page.context["back"] == f"/studies/{study.pk}/"
    answer = client.post(address, {"runs": [run.pk for run in left]})
    assert answer.headers["Location"] == f"/studies/{study.pk}/"
    assert states(done, *left, elsewhere) == ["succeeded", "cancelled", "cancelled", "queued"]
    after = client.get(f"/studies/{study.pk}/").content.decode()
    assert address not in after and "cancelled: Cancelled" not in after
    assert "No run of this study is left to cancel." in client.get(address, follow=True).content.decode()
    assert "2 cancelled</span>" in client.get("/studies/").content.decode()
    client.force_login(bob)
    assert client.get(address).status_code == 403


def test_cancelling_a_study_is_offered_to_whom_a_run_of_it_is_left_to_cancel(
    client: Client, alice: Any, admin: Any
) -> None:
    """A run that an admin has run again is the admin's: the study's owner was led to a page that cancels nothing."""
    study = Study.objects.create(name="hers", owner=alice)
    spec = RunSpec().model_dump(mode="json")
    make(alice, "first", study=study, spec=spec, state="lost")
    make(admin, "again", study=study, spec=spec, exclusive=True)
    offered = f"/runs/cancel?all_of={study.pk}"
    for user, shown in ((admin, True), (alice, False)):
        client.force_login(user)
        assert (offered in client.get(f"/studies/{study.pk}/").content.decode()) is shown
    make(alice, "hers", study=study, spec=spec)
    assert offered in client.get(f"/studies/{study.pk}/").content.decode()


def test_of_a_list_filtered_by_study_only_the_ticked_runs_are_cancelled(client: Client, alice: Any) -> None:
    study = Study.objects.create(name="long", owner=alice, kind="matrix")
    ticked, kept = (factory.queued(alice, study=study) for _ in range(2))
    client.force_login(alice)
    listed = f"/runs/?study={study.pk}"
    assert f'name="study" value="{study.pk}"' in client.get(listed).content.decode()
    address = f"/runs/cancel?study={study.pk}&runs={ticked.pk}"
    page = client.get(address)
    assert [run.pk for run in page.context["runs"]] == [ticked.pk]
    assert page.context["back"] == listed
    assert client.post(address, {"runs": [ticked.pk]}).headers["Location"] == listed
    assert states(ticked, kept) == [State.CANCELLED, State.QUEUED]
    nothing = client.get(f"/runs/cancel?study={study.pk}", follow=True)
    assert nothing.redirect_chain[0][0] == listed and "tick at least one" in nothing.content.decode()


def test_who_may_only_look_is_not_offered_it(client: Client, alice: Any, bob: Any) -> None:
    run = make(alice, "one")
    client.force_login(bob)
    assert "data-cancel" not in client.get("/runs/").content.decode()
    assert client.post("/runs/cancel", {"runs": [run.pk]}).status_code == 403
    assert states(run) == [State.QUEUED]
