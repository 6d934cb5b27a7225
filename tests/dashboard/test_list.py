"""The runs list: its state is in the URL, and its number of queries does not grow with the number of runs."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.live.changes import COST
from dashboard.runs.browse import list_views
from dashboard.runs.browse.listing import options
from dashboard.runs.browse.run_list import Filters
from dashboard.runs.models import Run, State
from tests.dashboard.plain import plain
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.django_db


def make(owner: Any, name: str = "run", **changes: Any) -> Run:
    values = {"spec": {}, "label": "Single", "queued_at": timezone.now(), "tags": []}
    return Run.objects.create(name=name, owner=owner, **values | changes)


def names(client: Client, query: str = "") -> list[str]:
    return [run.name for run in client.get(f"/runs/{query}").context["page"]]


def test_filters_and_their_combination(reader: Client, alice: Any, admin: Any) -> None:
    make(alice, "one", state="failed", label="DP", tags=["x"])
    make(alice, "two", state="succeeded", label="TP", tags=["x y", "z"])
    make(admin, "three", state="failed", label="DP")
    assert names(reader, "?state=failed") == ["three", "one"]
    assert names(reader, "?state=failed&state=succeeded&owner=alice") == ["two", "one"]
    assert names(reader, "?strategy=TP") == ["two"]
    assert names(reader, "?tag=x") == ["one"]
    assert names(reader, "?q=thr") == ["three"]
    assert names(reader, "?q=nothing-like-it") == []
    assert b"No run matches" in reader.get("/runs/?q=nothing-like-it").content


TAGGED = {"plain": [], "one": ["Alpha"], "two": ["alpha", "béta"], "odd": ["50%_\\"], "quoted": ['say "hi", ok']}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=[", []),
        ("q=%5D", []),
        ("q=,", ["quoted"]),
        ('q="', ["quoted"]),
        ("q=u00e", []),
        ("q=éT", ["two"]),
        ("q=LPH", ["one", "two"]),
        ("q=%25", ["odd"]),
        ("q=_", ["odd"]),
        ("q=%5C", ["odd"]),
        ("tag=alpha", ["two"]),
        ("tag=Alpha", ["one"]),
        ("tag=lph", []),
        ("tag=béta", ["two"]),
        ('tag=say "hi", ok', ["quoted"]),
        ("tag=50%25_%5C", ["odd"]),
    ],
)
def test_tags_are_searched_one_by_one_and_not_as_the_text_of_a_list(
    reader: Client, alice: Any, query: str, found: list[str]
) -> None:
    for name, tags in TAGGED.items():
        make(alice, name, tags=tags)
    assert sorted(names(reader, f"?{query}")) == sorted(found)
    exported = reader.get(f"/runs/export.json?{query}").json()["data"]
    assert sorted(row["name"] for row in exported) == sorted(found)


def test_only_who_may_submit_is_led_to_the_form_from_an_empty_list(client: Client, alice: Any, bob: Any) -> None:
    for user, led in ((alice, True), (bob, False)):
        client.force_login(user)
        assert (b'href="/runs/new/"' in client.get("/runs/").content) is led


def test_the_part_for_an_open_page_says_what_it_cost(reader: Client) -> None:
    assert float(reader.get("/runs/", headers={"HX-Request": "true"}).headers[COST]) >= 0


@pytest.mark.parametrize("column", ["loss", "step_time", "memory", "name", "owner", "created", "tokens_per_s", "model"])
def test_every_column_sorts_both_ways(reader: Client, alice: Any, column: str) -> None:
    for i in range(3):
        make(alice, f"run {i}", loss=i, step_time=i, memory_peak=i, tokens_per_s=i)
    up, down = names(reader, f"?sort={column}"), names(reader, f"?sort=-{column}")
    assert len(up) == 3 and (up == down[::-1] or column in ("owner", "model"))


def test_the_digits_of_a_column_stand_below_each_other(reader: Client, alice: Any) -> None:
    """17 s below 16.5 s would look less exact."""
    for i, seconds in enumerate((16.5, 17.0)):
        make(alice, f"run {i}", step_time=seconds, loss=4 + i / 10, memory_peak=(5 + i / 10) * 2**20, tokens_per_s=2e3)
    rows = plain(reader.get("/runs/?sort=name").content.decode())
    assert "16.5 s" in rows and "17.0 s" in rows and "17 s" not in rows
    assert "4.10" in rows and "4.00" in rows and "2.00 k tokens/s" in rows
    assert "5.1 MiB" in rows and "5.0 MiB" in rows


def test_a_disturbed_run_says_so_beside_its_step_time(reader: Client, alice: Any) -> None:
    for name, others in (("calm", 0.02), ("unknown", None), ("disturbed", 0.64)):
        make(alice, name, state=State.SUCCEEDED, step_time=0.1, devices=2, summary={"cpu_others": others})
    page = reader.get("/runs/").content.decode()
    assert page.count("read the timing with care") == 1
    row = page[page.index(">disturbed</a>") :]
    assert "Other processes used 64 % of one of its devices" in row[: row.index("</tr>")]
    make(alice, "text", state=State.SUCCEEDED, step_time=None, summary={"cpu_others": 0.64})
    assert "≈ </span>" not in reader.get("/runs/?q=text").content.decode(), "there is no step time to doubt"


def test_what_the_columns_hold_is_said_without_a_mouse_too(reader: Client, alice: Any) -> None:
    make(alice, "one", state=State.SUCCEEDED, step_time=0.1)
    page = reader.get("/runs/").content.decode()
    for hint, column in re.findall(r'aria-sort="[^"]*" title="([^"]+)"><a [^>]*>([^<]+)<', page):
        assert f"<dt>{column}</dt><dd>{hint[0].upper()}{hint[1:]}.</dd>" in page
    assert page.count("<dt>") >= 4 and "≈ where other processes used the devices, too." in page


def test_runs_of_one_strategy_are_told_apart_by_their_models_and_precisions(reader: Client, alice: Any) -> None:
    for model, precision in (
        ({"kind": "resnet50"}, "fp32"),
        ({"layers": 2, "hidden": 64}, "bf16"),
        ({"layers": 4, "hidden": 64}, "fp32"),
    ):
        spec = {"model": model, "train": {"precision": precision}}
        make(alice, "DP", spec=spec, label="DP", tokens_per_s=5, step_time=1, step=1)
    rows = reader.get("/runs/?sort=-id").content.decode().split('<tr id="run-')[1:]
    for row, said in zip(rows, ("GPT 4 x 64<", "GPT 2 x 64, bf16<", "ResNet-50 width"), strict=True):
        assert f'<td data-title="Model">{said}' in row
    assert "images/s" in rows[2] and "tokens/s" in rows[1]
    assert len(names(reader, "?sort=model")) == 3


def test_the_filters_carry_the_order_with_them(reader: Client, alice: Any) -> None:
    kept = b'<input type="hidden" name="sort" form="filters" value="loss">'
    assert kept in reader.get("/runs/?sort=loss").content
    assert kept in reader.get("/runs/?sort=loss&q=nothing-like-it").content
    assert b'name="sort"' not in reader.get("/runs/").content


@pytest.mark.parametrize(
    "query", ["?sort=spec", "?page=abc", "?page=99999", "?state=odd", "?study=x", "?q=%00", "?q=" + "x" * 9000]
)
def test_nonsense_in_the_url_is_ignored(reader: Client, alice: Any, query: str) -> None:
    make(alice)
    assert reader.get(f"/runs/{query}").status_code == 200


def test_what_the_address_cannot_mean_is_said_with_what_would_be_right(reader: Client, alice: Any) -> None:
    make(alice, "one")
    page = reader.get("/runs/?state=zzz&state=queued&sort=spec")
    said = page.context["listing"].ignored
    assert said[0].startswith("state=zzz is not a state and was left out; there are queued, starting, running")
    assert said[1].startswith("sort=spec is not an order and was left out; there are id, name, state")
    assert page.content.decode().count("data-ignored") == 2 and names(reader, "?state=zzz&state=queued") == ["one"]
    assert "data-ignored" not in reader.get("/runs/?state=queued&sort=-loss&q=").content.decode()


def test_a_filter_that_no_run_has_any_more_is_shown_where_it_filters(reader: Client, alice: Any) -> None:
    """The fields said anyone and any above a list without runs; the tag was sent back with one space."""
    make(alice, "one", label="DP", tags=["two  spaces"])
    page = reader.get("/runs/?owner=carol&strategy=TP&tag=two++spaces").content.decode()
    chosen = re.findall(r"<option[^>]* selected>([^<]*)</option>", page)
    assert chosen == ["carol", "TP", "two  spaces"]
    assert '<option value="two  spaces" selected>' in page


@pytest.mark.parametrize("study", ["999", "x"])
def test_a_study_that_there_is_not_is_said(reader: Client, alice: Any, study: str) -> None:
    """The list was empty, as if the study had no runs; a file cannot say it, so it is refused."""
    make(alice, "one")
    page = reader.get(f"/runs/?study={study}")
    assert page.context["listing"].ignored == (f"study={study} was left out; there is no study of this number.",)
    assert names(reader, f"?study={study}") == ["one"]
    for name in ("export.csv", "export.json"):
        refused = reader.get(f"/runs/{name}?study={study}")
        assert refused.status_code == 400 and "there is no study" in refused.content.decode()


@pytest.mark.parametrize("query", ["state=faild", "state=faild&state=failed", "created_after=yesterday", "sort=spec"])
def test_a_file_is_not_made_of_runs_that_its_address_does_not_mean(reader: Client, alice: Any, query: str) -> None:
    """It had every run, as if none of that had been asked for."""
    make(alice, "one", state="failed")
    make(alice, "two")
    for name in ("export.csv", "export.json"):
        refused = reader.get(f"/runs/{name}?{query}")
        assert refused.status_code == 400 and "was left out" in refused.content.decode()


def test_links_keep_the_state_of_the_list(reader: Client, alice: Any) -> None:
    for i in range(60):
        make(alice, f"run {i}", state="failed")
    page = reader.get("/runs/?state=failed&q=run&sort=name").content.decode()
    assert "?q=run&amp;sort=name&amp;state=failed&amp;page=2" in page
    assert "export.csv?q=run&amp;sort=name&amp;state=failed" in page
    assert 'aria-sort="ascending"' in page


def test_htmx_gets_the_results_alone_and_the_clean_address(reader: Client, alice: Any) -> None:
    make(alice)
    part = reader.get("/runs/?q=run&owner=&tag=", headers={"HX-Request": "true"})
    assert b"<html" not in part.content and b"runs-table" in part.content
    assert part["HX-Push-Url"] == "/runs/?q=run"


def test_html_in_names_and_tags_is_text(reader: Client, alice: Any) -> None:
    make(alice, "<script>alert(1)</script>", tags=["<img src=x onerror=alert(1)>"], detail='"><b>')
    page = reader.get("/runs/").content
    assert b"<script>alert" not in page and b"<img src=x" not in page and b'"><b>' not in page


def test_exports_have_every_page_and_run_no_formulas(reader: Client, alice: Any) -> None:
    for i in range(60):
        make(alice, f"run {i}")
    make(alice, '=HYPERLINK("http://x")', loss=float("inf"))
    rows = list(csv.DictReader(io.StringIO(received(reader.get("/runs/export.csv")).decode())))
    assert len(rows) == 61
    assert rows[0]["name"].startswith("'=")
    data = reader.get("/runs/export.json?q=run%201").json()
    assert data["meta"]["count"] == len(data["data"]) == 11


def test_a_file_of_all_runs_is_never_cut_and_a_document_says_what_it_leaves_out(
    reader: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_views, "MAX_EXPORT", 3)
    monkeypatch.setattr(list_views, "EXPORT_BATCH", 2)
    for i in range(5):
        make(alice, f"run {i}")
    rows = csv.DictReader(io.StringIO(received(reader.get("/runs/export.csv?sort=name")).decode()))
    assert [row["name"] for row in rows] == [f"run {i}" for i in range(5)]
    data = reader.get("/runs/export.json?sort=name").json()
    assert [row["name"] for row in data["data"]] == ["run 0", "run 1", "run 2"]
    assert data["meta"] == {"count": 3, "total": 5, "limit": 3}


def test_ticked_boxes_lead_to_the_comparison(reader: Client) -> None:
    assert reader.get("/runs/compare?runs=3&runs=1&runs=3&runs=x")["Location"] == "/compare/?runs=3,1"
    assert reader.get("/runs/compare")["Location"] == "/runs/"


def test_queries_do_not_grow_with_the_runs(reader: Client, alice: Any, django_assert_max_num_queries: Any) -> None:
    rows = [
        Run(name=f"run {i}", owner=alice, spec={}, label="DP", tags=["a", str(i % 7)], queued_at=timezone.now())
        for i in range(1000)
    ]
    Run.objects.bulk_create(rows)
    with django_assert_max_num_queries(10):
        assert len(reader.get("/runs/?sort=-loss&tag=a").context["page"]) == 50


def test_only_ids_are_sorted(reader: Client, alice: Any) -> None:
    make(alice, "one", loss=1.0)
    with CaptureQueriesContext(connection) as asked:
        assert names(reader, "?sort=-loss") == ["one"]
        assert names(reader, "?sort=-created") == ["one"]
    ids = 'SELECT "runs_run"."id" AS "pk" FROM'
    by_loss, by_age = (query["sql"] for query in asked if query["sql"].startswith(ids))
    assert 'ORDER BY "runs_run"."loss" DESC NULLS LAST' in by_loss
    assert 'ORDER BY "runs_run"."created_at" DESC, ' in by_age


def test_values_to_filter_by_are_read_again_when_there_is_a_new_run(
    reader: Client, alice: Any, django_assert_num_queries: Any
) -> None:
    make(alice, "one", tags=["x"])
    assert options(Filters()) == {"owners": ["alice"], "strategies": ["Single"], "tags": ["x"]}
    with django_assert_num_queries(1):
        options(Filters())
    make(alice, "two", tags=["y"], label="DP")
    assert options(Filters()) == {"owners": ["alice"], "strategies": ["DP", "Single"], "tags": ["x", "y"]}
