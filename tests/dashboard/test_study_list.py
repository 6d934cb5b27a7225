"""The list of studies: a page of it costs the same, however many studies there are."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.runs.models import Run, State
from dashboard.studies.list_views import FEW, PER_PAGE
from dashboard.studies.models import Study
from tests.dashboard import factory


def test_the_runs_of_one_page_of_studies_are_counted(reader: Client, alice: Any) -> None:
    studies = [Study.objects.create(name=f"study {i}", owner=alice) for i in range(PER_PAGE + 2)]
    factory.queued(alice, study=studies[0])
    with CaptureQueriesContext(connection) as asked:
        last = reader.get("/studies/?page=2").context
    assert [study.pk for study in last["studies"]] == [studies[1].pk, studies[0].pk]
    assert [study.total for study in last["studies"]] == [0, 1]
    (counting,) = (query["sql"] for query in asked if "GROUP BY" in query["sql"])
    assert f'"studies_study"."id" IN ({studies[1].pk}, {studies[0].pk})' in counting


def names(client: Client, query: str = "") -> list[str]:
    return [study.name for study in client.get(f"/studies/{query}").context["studies"]]


def test_studies_are_searched_and_filtered_by_owner_and_kind(reader: Client, alice: Any, admin: Any) -> None:
    assert "filter-q" not in reader.get("/studies/").content.decode(), "there is nothing to search"
    Study.objects.create(name="Splits of a GPT", owner=alice, kind="matrix")
    fit = Study.objects.create(name="What fits", owner=alice, kind="fit", notes="Is a GPT of 40 layers too much?")
    Study.objects.create(name="Starter", owner=admin, kind="starter")
    assert names(reader, "?q=gpt") == ["What fits", "Splits of a GPT"]
    assert names(reader, f"?q={fit.pk}") == ["What fits"]
    assert names(reader, "?owner=alice&kind=matrix") == ["Splits of a GPT"]
    assert names(reader, f"?owner={admin}") == ["Starter"]
    assert names(reader, "?q=&owner=&kind=") == names(reader, "?q=%00") == ["Starter", "What fits", "Splits of a GPT"]
    none = reader.get("/studies/?q=gpt&kind=starter").content.decode()
    assert "No study matches" in none and "No study yet" not in none and 'value="gpt"' in none
    listed = reader.get("/api/v1/studies?q=gpt&kind=fit").json()
    assert [study["name"] for study in listed["data"]] == ["What fits"] and listed["meta"]["count"] == 1
    assert reader.get(f"/api/v1/studies/{fit.pk}").json()["data"]["notes"] == fit.notes


def test_pages_and_live_changes_keep_the_filter(reader: Client, alice: Any) -> None:
    for i in range(PER_PAGE + 1):
        Study.objects.create(name=f"study {i}", owner=alice, kind="fit")
        page = reader.get("/studies/").content.decode()
        assert ('id="filters"' in page) == (i >= FEW), "a few are seen at a glance"
    Study.objects.create(name="another", owner=alice)
    page = reader.get("/studies/?q=study&kind=fit").content.decode()
    assert 'href="?q=study&amp;kind=fit&amp;page=2"' in page and "<option selected>fit</option>" in page
    assert names(reader, "?q=study&kind=fit&page=2") == ["study 0"]
    told = "".join(reader.get("/studies/changes.json?q=another").json()["texts"].values())
    assert ">another</a>" in told and ">study 1</a>" not in told


def test_name_and_notes_are_changed_by_their_owner_and_shown_as_text(
    client: Client, alice: Any, bob: Any, admin: Any
) -> None:
    study = Study.objects.create(name="before", owner=alice, base=factory.BASE)
    study.baseline = factory.finished(alice, study=study)
    study.save()
    address = f"/studies/{study.pk}/"
    client.force_login(bob)
    assert f"{address}edit/" not in client.get(address).content.decode()
    assert client.post(f"{address}edit/", {"name": "his"}).status_code == 403
    client.force_login(alice)
    assert f"{address}edit/" in client.get(address).content.decode()
    asked = {"name": " after ", "notes": "Is DP faster?\r\n<b>Yes.</b>"}
    assert client.post(f"{address}edit/", asked).headers["Location"] == address
    for where in (address, f"{address}report/"):
        text = client.get(where).content.decode()
        assert "<h1>after</h1>" in text and "Is DP faster?<br>&lt;b&gt;Yes.&lt;/b&gt;" in text, where
    for wrong, said in (
        ({"name": " "}, "A study needs a name."),
        ({"name": "x" * 121}, "A name has at most 120 characters; this one has 121."),
        ({"name": "x", "notes": "y" * 4001}, "Notes have at most 4\xa0000 characters; these have 4\xa0001."),
        ({"name": "x", "notes": "a\0"}, "Null characters cannot be stored."),
    ):
        answer = client.post(f"{address}edit/", {"notes": "kept", **wrong})
        assert answer.status_code == 422 and said in answer.content.decode()
    study.refresh_from_db()
    assert (study.name, study.notes) == ("after", "Is DP faster?\n<b>Yes.</b>")
    client.force_login(admin)
    assert client.post(f"{address}edit/", {"name": "all may", "notes": ""}).status_code == 302
    assert 'class="notes"' not in client.get(address).content.decode()


@pytest.mark.parametrize(
    ("ended", "failed", "cancelled"),
    [
        ((State.LOST, State.LOST), 1, 0),
        ((State.LOST, State.LOST, State.SUCCEEDED), 0, 0),
        ((State.SUCCEEDED, State.FAILED, State.CANCELLED), 0, 0),
        ((State.LOST, State.CANCELLED), 0, 1),
        ((State.CANCELLED, State.CANCELLED, State.QUEUED), 0, 0),
    ],
)
def test_a_setting_that_was_run_again_counts_as_the_run_that_stands_for_it(
    reader: Client, alice: Any, ended: tuple[State, ...], failed: int, cancelled: int
) -> None:
    study = Study.objects.create(name="again", owner=alice)
    first, *more = [factory.queued(alice, study=study) for _ in ended]
    for run, state in zip((first, *more), ended, strict=True):
        Run.objects.filter(pk=run.pk).update(state=state, repeats=None if run is first else first)
    (listed,) = reader.get("/studies/").context["studies"]
    assert (listed.total, listed.failed, listed.cancelled) == (1, failed, cancelled)
