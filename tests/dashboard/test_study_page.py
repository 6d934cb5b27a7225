"""The study page agrees with the runs' records, in every state of a study."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run, State
from dashboard.studies.entry_points import ENTRY_POINTS
from dashboard.studies.list_views import FEW
from dashboard.studies.models import Once, Study
from dashboard.studies.overview import figures, gantts
from dashboard.studies.selectors import held_equal, overview
from parallel_core.plan.memory import worst_stage
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.study_charts import charts_of

SPLITS = factory.SPLITS[:4]
HIDDEN = r'<input type="hidden" name="(\w+)"[^>]*>'


@pytest.fixture
def study(alice: Any) -> Study:
    return factory.study(alice, "Starter", SPLITS)


def test_rows_stand_fastest_first_with_speedup_over_the_baseline(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    medians = [row.run.summary["timed"]["median"] for row in view.rows]
    assert medians == sorted(medians)
    assert study.baseline is not None
    single = study.baseline.summary["timed"]["median"]
    for row, median in zip(view.rows, medians, strict=True):
        assert row.entry.speed is not None
        assert row.entry.speed.ratio == pytest.approx(single / median)
    assert view.rows[0].entry.label == "DP"
    assert view.baseline is not None and view.baseline.entry.baseline


def test_overview_needs_few_queries(study: Study, django_assert_max_num_queries: Any) -> None:
    with django_assert_max_num_queries(7):  # however many runs and hosts
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
    answer = charts_of(reader, study, f"?baseline={naive.pk}")
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


def test_what_was_changed_of_a_study_stands_on_its_page_with_who_did_it(
    reader: Client, member: Client, alice: Any, study: Study
) -> None:
    address, other = f"/studies/{study.pk}/", study.runs.get(label="DP")
    assert 'id="history"' not in reader.get(address).content.decode()
    member.post(f"{address}edit/", {"name": "Second", "notes": "a finding", "priority": "low"})
    member.patch(f"/api/v1{address[:-1]}", {"name": "Third"}, content_type="application/json")
    member.patch(f"/api/v1{address[:-1]}", {"name": "Third"}, content_type="application/json")
    for _ in range(2):
        member.post(f"{address}baseline/", {"baseline": other.pk})
    assert reader.post(f"{address}edit/", {"name": "Mine"}).status_code == 403
    said = [
        "alice queued its runs at low priority, instead of normal.",
        "alice renamed it to “Second”, instead of “Starter”; changed its notes.",
        "alice renamed it to “Third”, instead of “Second”.",
        f"alice made “{other.name}” the baseline, instead of “{study.baseline}”.",
    ]
    assert [(event.text, event.actor) for event in study.history] == [(text, alice) for text in said]
    page = html.unescape(reader.get(address).content.decode())
    assert page.index('id="history"') < min(page.index(f"<td>{text}</td><td>alice</td>") for text in said)


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
    assert status["DP"] == "running: 12 of 43 steps"
    assert status["TP"].startswith("queued: ")
    assert status["PP-1F1B"] == "failed: Rank 1 ran out of memory."
    text = reader.get(f"/studies/{made.pk}/").content.decode()
    # rows stay together, however much height is reserved
    assert "2 of 4 runs done" in text and "align-content: start" in text
    running_bar = charts_of(reader, made)["speedup"]["figure"]["data"][0]
    assert running_bar["marker"]["color"][1] == "rgba(0,0,0,0)"  # outlined


def test_controls_of_the_page_keep_its_other_parameters(reader: Client, study: Study) -> None:
    single = study.baseline_id
    query = f"?baseline={single}&show={single}&target=2.5&axis=seconds&smoothing=light&scale=log"
    page = reader.get(f"/studies/{study.pk}/{query}").content.decode()
    forms = {
        re.search(r'name="(baseline|target)"|data-numbers="(show)"', re.sub(HIDDEN, "", form)): form
        for form in re.findall(r'<form [^>]*method="get".*?</form>', page, re.S)
    }
    kept = {found[1] or found[2]: set(re.findall(HIDDEN, form)) for found, form in forms.items() if found}
    every = {"baseline", "show", "target", "axis", "smoothing", "scale"}
    assert kept == {changed: every - {changed} for changed in kept}
    assert {"baseline", "show"} <= set(kept)
    report = f"/studies/{study.pk}/report/?baseline={single}&show={single}&target=2.5"
    assert f'href="{report}"' in html.unescape(page)
    assert f'href="{report.replace("report/", "table.csv")}"' in html.unescape(page)


@pytest.mark.parametrize(
    ("queued", "running", "note"),
    ((3, 0, None), (4, 0, "and 1 more,"), (2, 1, None), (0, 5, None), (4, 2, "and 3 more,")),
)
def test_the_progress_card_counts_the_runs_it_hides(
    reader: Client, alice: Any, queued: int, running: int, note: str | None
) -> None:
    made = Study.objects.create(name="Under way", owner=alice, kind="starter", base={})
    runs = [factory.queued(alice, {}, study=made, position=i) for i in range(running + queued)]
    for run in runs[:running]:
        factory.start(run)
    page = reader.get(f"/studies/{made.pk}/").content.decode()
    card = page.partition('<div id="progress"')[2].partition("</ul>")[0]
    hidden = int(note.split()[1]) if note else 0
    assert card.count('class="badge"') == len(runs) - hidden
    assert (" more, in the order of the table below" in card) == bool(note)
    assert (note or "") in card


def test_a_page_without_a_choice_names_no_runs_to_draw(reader: Client, study: Study) -> None:
    """So that its timelines are of the runs that are done when they are fetched, not when the page was made."""
    single = study.baseline_id
    for asked, fetched in (("", ""), (f"?show={single}", f"?show={single}"), (f"?baseline={single}",) * 2):
        page = reader.get(f"/studies/{study.pk}/{asked}").content.decode()
        assert f'data-src="/studies/{study.pk}/gantt.json{fetched}"' in page


def test_gantt_is_fetched_apart_and_draws_the_chosen_runs(reader: Client, study: Study) -> None:
    chosen = study.runs.get(label="DP")
    answer = reader.get(f"/studies/{study.pk}/gantt.json?show={chosen.pk}").json()
    assert [row[:2] for row in answer["rows"]] == [["DP", "0"], ["DP", "1"]]
    four = reader.get(f"/studies/{study.pk}/gantt.json").json()
    assert len({row[0] for row in four["rows"]}) == 4


def test_of_too_many_chosen_runs_those_that_are_drawn_stay_chosen(
    reader: Client, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gantts, "MOST", 2)
    every = ",".join(str(run.pk) for run in study.runs.all())
    drawn = {row[0] for row in reader.get(f"/studies/{study.pk}/gantt.json?show={every}").json()["rows"]}
    page = reader.get(f"/studies/{study.pk}/?show={every}").content.decode()
    form = page.partition("Choose which runs are drawn")[2].partition("</form>")[0]
    ticked = re.findall(r"checked> ([^<]+)<", form)
    assert len(drawn) == 2 and {html.unescape(label) for label in ticked} == drawn
    assert "2 at most: the first in the order of the charts" in form


def test_csv_holds_the_numbers_unrounded(reader: Client, study: Study) -> None:
    table = list(csv.DictReader(io.StringIO(reader.get(f"/studies/{study.pk}/table.csv").content.decode())))
    by_label = {row["label"]: row for row in table}
    for run in study.runs.all():
        assert float(by_label[run.label]["step_median_s"]) == run.summary["timed"]["median"]
        assert int(by_label[run.label]["memory_bytes"]) == run.memory_peak


def test_csv_says_of_how_many_devices_a_rate_is(reader: Client, alice: Any) -> None:
    """`tflops` is of one device, the peak of all."""
    made = Study.objects.create(name="Two", owner=alice)
    run = factory.finished(alice, {"dp": 2}, study=made)
    own = {"tokens_per_s": 1.0, "tflops": 3.0, "mfu": 0.25, "hfu": 0.25, "peak_flops_per_s": 24e12, "peak_devices": 2}
    Run.objects.filter(pk=run.pk).update(summary={**run.summary, "meters": own})
    (row,) = csv.DictReader(io.StringIO(reader.get(f"/studies/{made.pk}/table.csv").content.decode()))
    numbers = {name: float(row[name]) for name in ("tflops", "devices", "peak_flops_per_s", "mfu")}
    assert numbers["mfu"] == numbers["tflops"] * 1e12 * numbers["devices"] / numbers["peak_flops_per_s"]
    assert list(row)[-2:] == ["broken", "devices"], "columns keep their places"


def test_csv_tells_the_faults_of_a_broken_run(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="One", owner=alice)
    faults = ["Straggler: rank 1 takes 2 times as long to compute", "Slow data: each batch is 20 ms late"]
    run = factory.finished(alice, {"dp": 2}, study=made)
    Run.objects.filter(pk=run.pk).update(injected=faults)
    (row,) = csv.DictReader(io.StringIO(reader.get(f"/studies/{made.pk}/table.csv").content.decode()))
    assert row["label"].endswith(", broken") and row["broken"] == "; ".join(faults)


def test_names_are_text_everywhere(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="<script>alert(1)</script>", owner=alice)
    factory.finished(alice, {}, study=made, name="<b>=1+1</b>")
    text = reader.get(f"/studies/{made.pk}/").content.decode()
    assert "<script>alert" not in text
    assert "<b>=1" not in text
    figure = charts_of(reader, made)["speedup"]["figure"]
    assert "&lt;b&gt;" in json.dumps(figure["layout"]["yaxis"]["ticktext"])
    assert "<b>=1" not in json.dumps(figure["layout"]["yaxis"]["ticktext"]).replace("<b>&", "")


def test_list_has_a_verdict_a_study_and_says_when_empty(reader: Client, alice: Any) -> None:
    """A yard that is to queue its first study by itself does not say that there is none to come."""
    awaited = plain(reader.get("/studies/").content.decode())
    assert "The first study is queued as soon as a worker has calibrated" in awaited and "No study yet" not in awaited
    Once.objects.create(what=Once.STARTER)
    assert "No study yet" in plain(reader.get("/studies/").content.decode())
    factory.study(alice, "Starter", SPLITS[:2], recompute=False)
    assert "Single" in plain(reader.get("/studies/").content.decode())


@pytest.mark.parametrize("member", [True, False])
def test_the_list_leads_to_the_page_that_answers_each_other_question(
    client: Client, alice: Any, bob: Any, member: bool
) -> None:
    """Who may only look is not led to forms that queue runs."""
    client.force_login(alice if member else bob)
    page = client.get("/studies/").content.decode()
    for entry_point in ENTRY_POINTS:
        address, _, place = entry_point.address.partition("#")
        answer = client.get(address)
        led = member or not entry_point.queues
        assert (f'href="{entry_point.address}"' in page) is led is (answer.status_code == 200)
        assert not place or f'id="{place}"' in answer.content.decode()
    assert "Compare" in page, "it is in no menu"


def test_many_studies_do_not_hide_the_other_questions_below_them(reader: Client, alice: Any) -> None:
    Study.objects.bulk_create(Study(name=f"study {i}", owner=alice) for i in range(FEW + 1))
    assert 'href="#ways"' in reader.get("/studies/").content.decode()
    Study.objects.filter(name="study 0").delete()
    assert 'href="#ways"' not in reader.get("/studies/").content.decode()


@pytest.mark.parametrize("address", ("/studies/", "/studies/1/", "/compare/", "/studies/1/changes.json"))
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


def test_a_run_added_joins_the_order_of_its_study(alice: Any, reader: Client, study: Study) -> None:
    url = f"/studies/{study.pk}/add/"
    assert reader.get(url).status_code == 403
    owner = Client()
    owner.force_login(alice)
    assert "Back to the runs" not in owner.get(url).content.decode(), "who opened it came from the study"
    form = owner.get(url).context["form"]
    values = {name: form[name].value() for name in form.fields}
    assert study.baseline is not None
    assert values["model__hidden"] == str(study.baseline.spec["model"]["hidden"])
    sent = {name: value for name, value in values.items() if value is not None and value is not False}
    assert owner.post(url, {**sent, "parallel__tp": "3"}).status_code == 422
    before = study.runs.count()
    assert owner.post(url, {**sent, "parallel__dp": "2", "parallel__micro_batches": "2"}).status_code == 302
    added = study.runs.get(position=before)
    assert (added.label, added.exclusive, added.state) == ("DP x2 micro-batches", True, State.QUEUED)


def test_predicted_memory_stands_beside_the_measured(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    chart = figures.memories(view)
    outline = next(trace for trace in chart.figure["data"] if trace.get("name") == "predicted")
    assert outline["x"] == [worst_stage(row.spec).total / (1 << 20) for row in view.rows]
    assert outline["base"] == 0
    ranks = [row[chart.columns.index("on rank")] for row in chart.rows]
    assert ranks == [str(row.run.summary["memory"]["rank"]) for row in view.rows]


def test_breakdown_names_its_step_and_holds_it_against_the_median(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    chart = figures.breakdowns(view)
    assert "the traced step nearest its median (under 1 % off it)" in chart.source
    ticks = next(trace for trace in chart.figure["data"] if trace.get("name") == "median step")
    assert ticks["x"] == [row.run.summary["timed"]["median"] * 1e3 for row in view.rows]


def test_verdict_and_progress_are_read_out_as_they_change(reader: Client, alice: Any) -> None:
    made = Study.objects.create(name="Half", owner=alice)
    factory.finished(alice, {}, study=made)
    factory.queued(alice, {"dp": 2}, study=made, position=1)
    page = reader.get(f"/studies/{made.pk}/").content.decode()
    assert '<div id="verdict" data-live aria-live="polite">' in page
    assert '<strong aria-live="polite" aria-atomic="true">1 of 2 runs done</strong>' in page
