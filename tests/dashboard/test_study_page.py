"""The study page says what the runs' records say, in every state of a study."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import State
from dashboard.studies.models import Study
from dashboard.studies.selectors import held_equal, overview
from parallel_core.spec import RunSpec
from tests.dashboard import factory

SPLITS = factory.SPLITS[:4]


@pytest.fixture
def reader(bob: Any) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture
def study(alice: Any) -> Study:
    return factory.study(alice, "Starter", SPLITS)


def test_rows_stand_fastest_first_with_speedup_over_the_baseline(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    medians = [row.run.summary["timed"]["median"] for row in view.rows]
    assert medians == sorted(medians)
    single = study.baseline.summary["timed"]["median"]
    for row, median in zip(view.rows, medians, strict=True):
        assert row.entry.speed is not None
        assert row.entry.speed.ratio == pytest.approx(single / median)
    assert view.rows[0].entry.label == "DP"
    assert view.baseline is not None and view.baseline.entry.baseline


def test_overview_needs_few_queries(study: Study, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(4):
        overview(study.runs.all(), study.baseline)


def test_batches_that_differ_are_compared_by_samples(alice: Any) -> None:
    small, large = factory.finished(alice, {}), factory.finished(alice, {}, train={"global_batch": 32})
    view = overview([small, large], small)
    row = next(row for row in view.rows if row.run.pk == large.pk)
    assert row.entry.speed is not None
    assert row.entry.speed.ratio == pytest.approx(2.0)


def test_page_shows_the_verdict_and_every_run(reader: Client, study: Study) -> None:
    page = reader.get(f"/studies/{study.pk}/")
    text = page.content.decode()
    assert page.status_code == 200
    assert "DP is fastest" in text
    assert all(run.label in text for run in study.runs.all())
    assert "GPT 4 x 64, sequence 32, batch 16, seed 7, fp32, 2 x CPU" in text


def test_baseline_of_the_address_wins(reader: Client, study: Study) -> None:
    naive = study.runs.get(label="Naive layer-wise")
    answer = reader.get(f"/studies/{study.pk}/charts.json?baseline={naive.pk}").json()
    row = next(row for row in answer["speedup"]["rows"] if row[0] == naive.label)
    assert row[1] == "1.00x"


def test_owner_keeps_a_baseline_and_others_may_not(alice: Any, reader: Client, study: Study) -> None:
    other = study.runs.get(label="DP")
    url = f"/studies/{study.pk}/baseline/"
    assert reader.post(url, {"baseline": other.pk}).status_code == 403
    owner = Client()
    owner.force_login(alice)
    assert owner.post(url, {"baseline": other.pk}).status_code == 302
    study.refresh_from_db()
    assert study.baseline == other
    assert owner.post(url, {"baseline": 10**9}).status_code == 404


def test_unfinished_runs_say_what_they_do(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="Half", owner=alice)
    factory.finished(alice, {}, study=made, position=0, exclusive=True)
    running = factory.queued(alice, {"dp": 2}, study=made, position=1, exclusive=True)
    factory.feed_steps(factory.start(running), 12)
    factory.queued(alice, {"tp": 2}, study=made, position=2, exclusive=True)
    failed = factory.queued(alice, {"pp": 2}, study=made, position=3)
    factory.start(failed)
    factory.end(failed, State.FAILED, "Rank 1 ran out of memory.", "out_of_memory")
    view = overview(made.runs.all())
    status = {row.run.label: row.entry.status for row in view.rows}
    assert status["DP"] == "running: step 12 of 43"
    assert status["TP"].startswith("queued: ")
    assert status["PP-1F1B"] == "failed: Rank 1 ran out of memory."
    text = reader.get(f"/studies/{made.pk}/").content.decode()
    assert "2 of 4 runs done" in text
    running_bar = reader.get(f"/studies/{made.pk}/charts.json").json()["speedup"]["figure"]["data"][0]
    assert running_bar["marker"]["color"][1] == "rgba(0,0,0,0)"  # outlined


def test_gantt_is_fetched_apart_and_draws_the_chosen_runs(reader: Client, study: Study) -> None:
    chosen = study.runs.get(label="DP")
    answer = reader.get(f"/studies/{study.pk}/gantt.json?show={chosen.pk}").json()
    assert [row[:2] for row in answer["rows"]] == [["DP", "0"], ["DP", "1"]]
    four = reader.get(f"/studies/{study.pk}/gantt.json").json()
    assert len({row[0] for row in four["rows"]}) == 4


def test_csv_holds_the_numbers_unrounded(reader: Client, study: Study) -> None:
    table = list(csv.DictReader(io.StringIO(reader.get(f"/studies/{study.pk}/table.csv").content.decode())))
    by_label = {row["label"]: row for row in table}
    for run in study.runs.all():
        assert float(by_label[run.label]["step_median_s"]) == run.summary["timed"]["median"]
        assert int(by_label[run.label]["memory_bytes"]) == run.memory_peak


def test_names_are_text_everywhere(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="<script>alert(1)</script>", owner=alice)
    factory.finished(alice, {}, study=made, name="<b>=1+1</b>")
    text = reader.get(f"/studies/{made.pk}/").content.decode()
    assert "<script>alert" not in text
    assert "<b>=1" not in text
    figure = reader.get(f"/studies/{made.pk}/charts.json").json()["speedup"]["figure"]
    assert "&lt;b&gt;" in json.dumps(figure["layout"]["yaxis"]["ticktext"])
    assert "<b>=1" not in json.dumps(figure["layout"]["yaxis"]["ticktext"]).replace("<b>&", "")


def test_list_has_a_verdict_a_study_and_says_when_empty(reader: Client, alice: Any) -> None:
    assert "No study yet" in reader.get("/studies/").content.decode()
    factory.study(alice, "Starter", SPLITS[:2], recompute=False)
    assert "Single" in reader.get("/studies/").content.decode()


@pytest.mark.parametrize("address", ("/studies/", "/studies/1/", "/compare/", "/studies/1/charts.json"))
def test_strangers_see_the_sign_in_only(db: None, address: str) -> None:
    assert "/accounts/" in Client().get(address).headers["Location"]


def test_a_study_without_runs_and_an_absent_one(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="Hollow", owner=alice)
    assert "has no runs" in reader.get(f"/studies/{made.pk}/").content.decode()
    assert reader.get("/studies/999999/").status_code == 404


def test_held_equal_names_only_what_is_shared() -> None:
    specs = [RunSpec.model_validate({"train": {"seed": seed}}) for seed in (1, 2)]
    assert "seed" not in held_equal(specs, 1)
    assert "batch 16" in held_equal(specs, 1)
