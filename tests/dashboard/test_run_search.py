"""Runs are found and exported by their configuration: terms `field=value`, dates, leaves of the spec, held-out loss."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from django.apps import apps
from django.test import Client

from dashboard.api.models import ApiToken
from dashboard.runs import services
from dashboard.runs.browse import field_terms
from dashboard.runs.browse.listing import date_text, moment
from dashboard.runs.browse.run_list import Filters, list_runs
from dashboard.runs.form import spec_fields
from dashboard.runs.models import Run, State
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker
API = "/api/v1/runs"


@pytest.fixture
def token(alice: Any) -> dict[str, str]:
    expires = datetime.now(UTC) + timedelta(days=1)
    return {"Authorization": f"Bearer {ApiToken.make(user=alice, name='n', scope='read', expires_at=expires)[1]}"}


@pytest.fixture
def runs(alice: Any) -> dict[str, Run]:
    """Runs that differ in one field each."""
    factory.worker(devices=4)
    tied = {"model": {**factory.BASE["model"], "tied": True}, "train": factory.BASE["train"]}
    made = {
        "plain": factory.queued(alice, name="plain"),
        "quick": factory.queued(alice, name="quick gpt", train={"lr": 0.003, "clip_norm": 0.5}),
        "cut": factory.queued(alice, {"pp": 2, "micro_batches": 4, "cuts": [3]}, name="cut"),
        "tied": services.submit(owner=alice, spec=tied, name="lr=0.003"),
    }
    older = Run.objects.get(pk=made["plain"].pk)
    del older.spec["train"]["eval_every"]
    older.save()  # as a version without this field stored it
    return made


def found(q: str) -> set[str]:
    return {run.name for run in list_runs(Filters(q=q))}


@pytest.mark.parametrize(
    ("q", "names"),
    [
        ("train.lr=0.003", {"quick gpt"}),
        ("train.lr=3e-3 GPT", {"quick gpt"}),
        ("train.lr=0.003 nothing-like-it", set()),
        ("train.lr=0.003 train.clip_norm=none", set()),
        ("train.clip_norm=0.5", {"quick gpt"}),
        ("parallel.cuts=3", {"cut"}),
        ("parallel.cuts=3,6", set()),
        ("parallel.cuts=none train.lr=0.003", {"quick gpt"}),
        ("model.tied=true", {"lr=0.003"}),
        ("model.kind=gpt parallel.pp=2", {"cut"}),
        ("train.eval_every=0", {"plain", "quick gpt", "cut", "lr=0.003"}),
        ("train.eval_every=5", set()),
        ("lr=0.003", {"lr=0.003"}),
    ],
)
def test_a_term_finds_runs_with_that_value(runs: dict[str, Run], q: str, names: set[str]) -> None:
    assert found(q) == names


@pytest.mark.parametrize(
    ("q", "said"),
    [
        ("train.lr=fast", "train.lr=fast was left out. A number is needed; got 'fast'."),
        ("train.lr=-1", "Must be more than 0; got -1."),
        ("model.kind=bert", "Must be 'gpt', 'mlp'"),
        ("train.global_bach=8", "train.global_bach is no field of a spec that can be searched, and was left out; "),
        ("train.global_bach=8", "train.global_batch is one."),
        ("parallel.program=x", "is no field of a spec that can be searched"),
    ],
)
def test_a_term_that_means_nothing_is_said_and_never_taken_for_a_word(
    member: Client, token: dict[str, str], runs: dict[str, Run], q: str, said: str
) -> None:
    page = member.get("/runs/", {"q": f"{q} plain"})
    assert said in page.context["listing"].ignored[0]
    assert [run.name for run in page.context["page"]] == ["plain"]
    for name in ("export.csv", "export.json"):
        refused = member.get(f"/runs/{name}", {"q": q})
        assert refused.status_code == 400 and said in refused.content.decode()
    refused = member.get(API, {"q": q}, headers=token)
    assert refused.status_code == 422
    assert said in refused.json()["error"]["fields"]["q"]


def test_every_leaf_of_the_spec_can_be_searched_by_its_default() -> None:
    defaults = RunSpec().model_dump(mode="json")
    for path in field_terms.leaves():
        section, leaf = path.split(".")
        text = str(spec_fields.text_of(path, defaults[section][leaf])) if path in spec_fields.LISTS else None
        value = defaults[section][leaf]
        text = "none" if value is None else str(value) if text is None else text
        assert not field_terms.parse(f"{path}={text.replace(' ', '')}").wrong, path


def test_exports_have_the_spec_and_the_losses_behind_what_they_had(member: Client, runs: dict[str, Run]) -> None:
    Run.objects.filter(name="cut").update(state=State.SUCCEEDED, loss=1.5, held_out=2.5)
    Run.objects.filter(name="plain").update(state=State.RUNNING, loss=9.0)
    rows = list(csv.DictReader(io.StringIO(received(member.get("/runs/export.csv")).decode())))
    assert list(rows[0])[:20][-1] == "steps_done"
    by_name = {row["name"]: row for row in rows}
    assert {by_name["cut"][name] for name in ("loss", "final_loss")} == {"1.5"}
    assert (by_name["cut"]["held_out"], by_name["cut"]["spec.parallel.cuts"]) == ("2.5", "3")
    assert (by_name["plain"]["loss"], by_name["plain"]["final_loss"]) == ("9.0", ""), "it has not ended"
    assert by_name["quick gpt"]["spec.train.lr"] == "0.003"
    told = {row["name"]: row for row in member.get("/runs/export.json").json()["data"]}
    assert told["cut"]["spec.parallel.cuts"] == [3] and told["cut"]["held_out"] == 2.5
    assert told["plain"]["spec.train.eval_every"] is None, "what a stored spec lacks is not made up"


def test_the_api_lists_specs_where_they_are_asked_for(
    client: Client, token: dict[str, str], runs: dict[str, Run], django_assert_max_num_queries: Any
) -> None:
    listed = client.get(API, {"q": "train.lr=0.003"}, headers=token).json()["data"]
    assert [(run["name"], run["spec"]) for run in listed] == [("quick gpt", None)]
    with django_assert_max_num_queries(6):
        whole = client.get(API, {"spec": "true"}, headers=token).json()["data"]
    assert {run["name"]: run["spec"]["train"]["lr"] for run in whole}["quick gpt"] == 0.003
    assert {run["final_loss"] for run in whole} == {None}


def test_runs_are_filtered_by_when_they_were_made(member: Client, token: dict[str, str], runs: dict[str, Run]) -> None:
    for name, at in (("plain", "2026-03-01T00:00Z"), ("cut", "2026-03-01T12:00Z"), ("quick gpt", "2026-03-02T00:00Z")):
        Run.objects.filter(name=name).update(created_at=moment(at))
    for query, names in (
        ("created_after=2026-03-01&created_before=2026-03-02", {"plain", "cut"}),
        ("created_after=2026-03-01T12:00Z&created_before=2026-03-02T00:00:01Z", {"cut", "quick gpt"}),
        ("created_before=2026-03-01T13:00%2B02:00", {"plain"}),
    ):
        assert {run.name for run in member.get(f"/runs/?{query}").context["page"]} == names
        assert {run["name"] for run in member.get(f"{API}?{query}", headers=token).json()["data"]} == names
        assert {run["name"] for run in member.get(f"/runs/export.json?{query}").json()["data"]} == names
    page = member.get("/runs/?created_after=2026-03-01&created_before=soon")
    assert page.context["listing"].ignored[0].startswith("created_before=soon was left out; write a date, such as")
    assert page.context["listing"].query() == "?created_after=2026-03-01"
    assert 'name="created_after" id="filter-created_after" value="2026-03-01"' in page.content.decode()
    for wrong in ("soon", "2026-02-30"):
        assert member.get(f"{API}?created_after={wrong}", headers=token).status_code == 422


@pytest.mark.parametrize("text", ["2026-03-01", "2026-03-01T12:30:00Z"])
def test_a_date_is_written_as_it_was_read(text: str) -> None:
    assert date_text(moment(text)) == text


@pytest.mark.parametrize("text", ["", "x", "2026-13-01", "0001-01-01T00:00+14:00", "2026-03-01\x00x"])
def test_what_is_no_date_is_none(text: str) -> None:
    assert moment(text) is None


def test_the_held_out_loss_is_a_column_where_a_run_has_one(member: Client, runs: dict[str, Run]) -> None:
    assert "Held out" not in member.get("/runs/").content.decode()
    Run.objects.filter(name="cut").update(held_out=1.25)
    Run.objects.filter(name="plain").update(held_out=3.5)
    page = member.get("/runs/?sort=held_out")
    assert [run.name for run in page.context["page"]][:2] == ["cut", "plain"]
    rows = page.content.decode().split('<tr id="run-')[1:]
    assert '<td class="num" data-title="Held out">1.25</td>' in rows[0]
    assert '<td class="num" data-title="Held out" data-none>—</td>' in rows[2]
    cells = page.content.decode().count('<th scope="col"')
    assert all(row.count("<td") + row.count('<th scope="row"') == cells for row in rows)
    Run.objects.update(held_out=None)
    assert "Held out" in member.get("/runs/?sort=held_out").content.decode(), "the order that is set can be seen"


def test_the_newest_held_out_loss_arrives_with_its_points(alice: Any) -> None:
    factory.worker()
    run = factory.queued(alice)
    attempt = factory.start(run)
    for step, value in ((4, 3.0), (9, 2.0), (14, float("nan"))):
        head = {"kind": "points", "rank": 0, "t": 1.75e9, "series": [["eval_loss", 1]]}
        factory.feed(attempt, 0, encode(head, np.array([(step, 1.75e9, value)], POINT).tobytes()))
        run.refresh_from_db()
        assert run.held_out == (None if value != value else value)


def test_ended_runs_get_theirs_from_their_summaries(alice: Any) -> None:
    factory.worker()
    told, none = factory.queued(alice), factory.queued(alice)
    Run.objects.filter(pk=told.pk).update(summary={"held_out": {"step": 4, "loss": 2.5}})
    Run.objects.filter(pk=none.pk).update(summary={"held_out": None})
    import_module("dashboard.runs.migrations.0026_run_held_out").fill(apps, None)
    assert list(Run.objects.order_by("pk").values_list("held_out", flat=True)) == [2.5, None]
    assert Run.objects.get(pk=told.pk).spec == told.spec, "nothing else of the row is written"


def test_runs_of_before_trained_on_where_their_loss_was_not_a_number(alice: Any) -> None:
    """So they do when they are run again, and are found so."""
    factory.worker()
    before, now = factory.queued(alice), factory.queued(alice)
    train = {name: value for name, value in before.spec["train"].items() if name != "stop_on_nan"}
    Run.objects.filter(pk=before.pk).update(spec={**before.spec, "train": train})
    import_module("dashboard.runs.migrations.0028_stop_on_nan").fill(apps, None)
    found = dict(Run.objects.values_list("pk", "spec__train__stop_on_nan"))
    assert found == {before.pk: False, now.pk: True}
    assert Run.objects.get(pk=before.pk).spec == {**before.spec, "train": {**train, "stop_on_nan": False}}
