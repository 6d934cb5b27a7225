"""Notes on a run: its owner and admins write them, everybody reads, searches and exports them."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run
from dashboard.runs.waiting.priority import Priority
from tests.dashboard import factory
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker


@pytest.fixture
def run(alice: Any) -> Run:
    factory.worker()
    return factory.queued(alice, name="kept", tags=["a"])


def edit(client: Client, run: Run, **fields: str) -> int:
    return int(client.post(f"/runs/{run.pk}/edit", fields).status_code)


def test_the_owner_writes_them_and_everybody_reads_them(member: Client, reader: Client, run: Run) -> None:
    assert edit(member, run, name="kept", tags="a", notes="Is it the rate?\r\n<b>Yes.</b>") == 302
    run.refresh_from_db()
    assert (run.notes, run.tags) == ("Is it the rate?\n<b>Yes.</b>", ["a"])
    shown = '<p class="notes">Is it the rate?<br>&lt;b&gt;Yes.&lt;/b&gt;</p>'
    for address in (f"/runs/{run.pk}/", f"/runs/{run.pk}/report/"):
        assert shown in reader.get(address).content.decode()
    assert edit(reader, run, notes="mine now") == 403
    assert edit(member, run, name="other") == 302, "an older form, without notes, leaves them"
    run.refresh_from_db()
    assert run.name == "other" and run.notes
    assert edit(member, run, notes="") == 302
    assert 'class="notes"' not in reader.get(f"/runs/{run.pk}/").content.decode()


def untouched(client: Client, address: str) -> dict[str, str]:
    """What the form at the address sends where nobody typed."""
    page = client.get(address)
    was = {f"was-{name}": value for name, value in page.context["was"].items()}
    assert all(f'name="{name}"' in page.content.decode() for name in was)
    return {**page.context["was"], **was}


def test_of_a_form_in_two_tabs_the_later_one_leaves_what_it_did_not_change(member: Client, run: Run) -> None:
    tabs = [untouched(member, f"/runs/{run.pk}/edit") for _ in range(2)]
    assert edit(member, run, **{**tabs[0], "name": "from the first tab"}) == 302
    refused = member.post(f"/runs/{run.pk}/edit", {**tabs[1], "notes": "y" * 4001})
    assert refused.status_code == 422 and refused.context["was"]["name"] == "kept", "as the tab began with it"
    assert edit(member, run, **{**tabs[1], "notes": "from the second"}) == 302
    run.refresh_from_db()
    assert (run.name, run.notes, run.tags) == ("from the first tab", "from the second", ["a"])


def test_of_a_study_in_two_tabs_as_of_a_run(member: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({},), recompute=False)
    address = f"/studies/{study.pk}/edit/"
    tabs = [untouched(member, address) for _ in range(2)]
    assert member.post(address, {**tabs[0], "name": "renamed", "priority": "low"}).status_code == 302
    assert member.post(address, {**tabs[1], "notes": "found"}).status_code == 302
    study.refresh_from_db()
    assert (study.name, study.notes, study.priority) == ("renamed", "found", Priority.LOW)


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ("y" * 4001, "Notes have at most 4\xa0000 characters; these have 4\xa0001."),
        ("a\0", "Null characters cannot be stored."),
    ],
)
def test_what_cannot_be_stored_is_refused_with_everything_kept(member: Client, run: Run, notes: str, said: str) -> None:
    answer = member.post(f"/runs/{run.pk}/edit", {"name": "new", "notes": notes})
    assert answer.status_code == 422
    assert answer.context["errors"] == {"notes": said} and answer.context["values"]["name"] == "new"
    run.refresh_from_db()
    assert (run.name, run.notes) == ("kept", "")


def test_they_are_found_and_exported(member: Client, run: Run) -> None:
    edit(member, run, notes="=the baseline of May")
    found = member.get("/runs/?q=of+may").context["page"]
    assert [one.pk for one in found] == [run.pk]
    assert member.get("/runs/export.json").json()["data"][0]["notes"] == "=the baseline of May"
    (row,) = csv.DictReader(io.StringIO(received(member.get("/runs/export.csv")).decode()))
    assert row["notes"].endswith("=the baseline of May") and not row["notes"].startswith("="), "no formula"


def test_the_api_writes_them_and_leaves_what_is_not_sent(member: Client, reader: Client, run: Run) -> None:
    address = f"/api/v1/runs/{run.pk}"
    kind = "application/json"

    def patch(client: Client, body: dict[str, Any]) -> Any:
        return client.patch(address, body, content_type=kind)

    assert patch(member, {"notes": "from a script"}).json()["data"]["notes"] == "from a script"
    told = patch(member, {"tags": ["b"]}).json()["data"]
    assert (told["name"], told["tags"], told["notes"]) == ("kept", ["b"], "from a script")
    assert reader.get(address).json()["data"]["notes"] == "from a script"
    assert patch(reader, {"notes": ""}).status_code == 403
    assert patch(member, {"notes": "y" * 4001}).status_code == 422
