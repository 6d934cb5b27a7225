"""The study's report: the method first, then the table of strategies, then written answers, all from the study's
numbers.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.runs.models import MemoryRecord, RankInfo, State
from dashboard.studies.models import Study
from dashboard.studies.overview import figures, method, slowest
from dashboard.studies.overview.link_rates import Rate, rates
from dashboard.studies.overview.rows import Row
from dashboard.studies.report import report_answers
from dashboard.studies.report.report_views import SHARES
from dashboard.studies.selectors import overview
from parallel_core.analysis.breakdown import COMPONENTS
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain

SPLITS: tuple[dict[str, Any], ...] = ({}, {"dp": 2}, {"pp": 2, "schedule": "naive"}, {"pp": 2, "micro_batches": 4})


@pytest.fixture
def study(alice: Any) -> Study:
    return factory.study(alice, "Four ways", SPLITS)


def _answers(study: Study) -> dict[str, str]:
    view = overview(study.runs.all(), study.baseline)
    return {
        one.question: " ".join(one.lines) for one in report_answers.of_overview(view, report_answers.steps_of(view))
    }


def test_method_comes_first_and_the_answers_follow_the_table(reader: Client, study: Study) -> None:
    text = reader.get(f"/studies/{study.pk}/report/").content.decode()
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads[0] == "Method"
    assert heads[1] == "All strategies"
    assert "Questions and answers" in heads[2:5]
    view = overview(study.runs.all(), study.baseline)
    steps = report_answers.steps_of(view)
    assert all(html.escape(line.text) in text for line in method.of_overview(view, steps.values()))
    assert len(report_answers.of_overview(view, steps)) == 7
    assert all(html.escape(line) in text for one in report_answers.of_overview(view, steps) for line in one.lines)
    kept = reader.get(f"/studies/{study.pk}/report/?download=1")
    assert f'filename="study-{study.pk}-report.html"' in kept["Content-Disposition"]


def test_the_page_answers_the_same_questions_and_each_leads_to_its_place(reader: Client, study: Study) -> None:
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    assert f'data-live-src="/studies/{study.pk}/questions/"' in page and "Answering the questions" in page
    marked = reader.get(f"/studies/{study.pk}/questions/").content.decode()
    assert re.search(r'<span class="whole">[^<]*\d (?:%|ms|[KMG]iB)', marked), "no line breaks before a unit"
    part = plain(marked)
    view = overview(study.runs.all(), study.baseline)
    asked = report_answers.of_overview(view, report_answers.steps_of(view))
    assert all(html.escape(text) in part for one in asked for text in (one.question, *one.lines))
    for words, address in (link for one in asked for link in one.links):
        assert words in part and f'href="{html.escape(address)}"' in part
        if address.startswith("#"):
            assert f'id="{address[1:]}"' in page
        else:
            assert reader.get(address.partition("#")[0]).status_code == 200
    at_step = {"?tab=whatif&step=10#details", "?tab=operators&step=10#details"}
    assert at_step <= {a[a.find("?") :] for o in asked for _, a in o.links}, "of the step that was read"
    assert study.baseline_id
    study.runs.exclude(pk=study.baseline_id).delete()
    assert "Which is fastest" not in reader.get(f"/studies/{study.pk}/questions/").content.decode()


def test_a_run_that_ended_before_its_first_timed_step_leaves_the_report_whole(
    reader: Client, alice: Any, study: Study
) -> None:
    early = factory.queued(alice, {"dp": 2}, study=study, position=9)
    factory.start(early)
    factory.end(early, State.FAILED, cause="killed_by_signal")
    early.refresh_from_db()
    assert early.summary["meters"] is None
    text = reader.get(f"/studies/{study.pk}/report/").content.decode()
    assert "in large matrix products." in text


def test_report_says_as_its_page_of_how_many_runs_nothing_was_found(reader: Client, alice: Any) -> None:
    study = Study.objects.create(name="One and one to come", owner=alice, kind="sweep")
    factory.finished(alice, {}, study=study, position=0)
    factory.queued(alice, {}, study=study, position=1, train={"steps": 20})
    MemoryRecord.objects.all().delete()  # what they made up is more than the model needs
    said = "Nothing wrong found in 1 of 2 runs; checked up to "
    assert "43 or 20 a run; measured, " in reader.get(f"/studies/{study.pk}/report/").content.decode()
    for address in ("report/", "findings/"):
        assert said in reader.get(f"/studies/{study.pk}/{address}").content.decode(), address


def test_the_columns_of_the_table_are_the_whole_step() -> None:
    assert sorted(name for names in SHARES.values() for name in names) == sorted(COMPONENTS)


def test_method_says_what_the_runs_had(reader: Client, study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    said = {line.term: line.text for line in method.of_overview(view, report_answers.steps_of(view).values())}
    assert "yard-a: 2 devices (core 0, core 1), 4 GiB of memory each" in said["Hardware"]
    assert said["Links"].startswith("Not measured"), "the factory's messages have no bytes"
    assert said["Seed"] == "7."
    assert said["Steps"].startswith("43 a run; measured, 40 steps, 3 skipped")
    assert said["Repeats"].startswith("Each setting ran once; 8 of 8")
    info = RankInfo.objects.filter(attempt__run__study=study).first()
    assert info is not None
    RankInfo.objects.filter(pk=info.pk).update(hello={**info.hello, "torch": "9.8.7", "version": "0.0.9+abc"})
    Worker.objects.update(version="0.1.0+def")
    versions = {line.term: line.text for line in method.of_overview(view, [])}["Versions"]
    assert versions == "Trainyard 0.0.9+abc and 0.1.0+def, PyTorch 9.8.7.", (
        "ranks of an earlier version do not say theirs"
    )
    shown = reader.get(f"/runs/{info.attempt.run_id}/?tab=ranks").content.decode()
    assert "Trainyard 0.0.9+abc, PyTorch 9.8.7." in shown, "the report's link leads there"
    Worker.objects.update(boot="started again", version="0.2.0+fed")
    versions = {line.term: line.text for line in method.of_overview(view, [])}["Versions"]
    assert versions == "Trainyard 0.0.9+abc, PyTorch 9.8.7.", (
        "none of the runs ran with the version that the worker has now"
    )


def test_every_number_of_the_method_leads_to_where_it_is_from(reader: Client, study: Study) -> None:
    """Also in the downloaded file: every link is an absolute address on the yard, and the address exists."""
    for run in study.runs.all():
        run.summary["meters"] = {"peak_flops_per_s": 1e10 * run.devices * run.pk}
        run.save(update_fields=["summary"])
    kept = reader.get(f"/studies/{study.pk}/report/?download=1").content.decode()
    part = kept[kept.index('id="method"') : kept.index("</dl>")]
    lines = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part))
    found = {term: [html.unescape(a) for a in re.findall(r'href="(.*?)"', text)] for term, text in lines.items()}
    without = {term for term, addresses in found.items() if not addresses}
    told = "the factory's messages have no bytes, its ranks told no version, its runs no pace"
    assert without == {"Links", "Versions", "Pace"}, told
    best = max(study.runs.all(), key=lambda run: run.pk)
    assert found["Hardware"] == [f"http://testserver/runs/{best.pk}/?tab=metrics#details"]
    base = study.baseline_id
    assert found["Seed"] == found["Model and data"] == [f"http://testserver/runs/{base}/?tab=spec#details"]
    every = [html.unescape(address) for address in re.findall(r'<a href="(.*?)"', kept)]
    for address in dict.fromkeys(every):
        assert address.startswith("http://testserver/"), address
        assert reader.get(address.removeprefix("http://testserver").partition("#")[0]).status_code == 200


def test_a_rate_of_a_link_leads_to_the_step_that_proves_it(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    steps = list(report_answers.steps_of(view).values())
    at = next(i for i, step in enumerate(steps) if step.spec.parallel.pp > 1)
    spans = {rank: rows.copy() for rank, rows in steps[at].spans.items()}
    for rows in spans.values():
        rows["bytes"] = 1000
    step = steps[at] = replace(steps[at], spans=spans)
    (line,) = [line for line in method.of_overview(view, steps) if line.term == "Links"]
    assert line.text.startswith("At least ")
    (link,) = line.links
    assert link[1] == f"/runs/{step.run.pk}/?tab=timeline&step={step.step}#details"


def test_a_link_is_at_least_as_fast_as_its_fastest_message() -> None:
    """Receives that were posted late, and waiting for a late rank, must not make a link look faster or slower."""
    rows = np.zeros(1, SPAN)
    rows["stage"], rows["bytes"], rows["end"] = 0, 1000, 100
    rows["kind"] = Kind.SEND_ACT
    late = rows.copy()
    late["kind"], late["stage"], late["start"], late["end"] = Kind.RECV_ACT, 1, 480, 500
    pipeline = Layout.of(RunSpec.model_validate({"parallel": {"pp": 2}}))
    found = rates([({0: rows, 1: late}, pipeline)])
    assert found == {"stages": Rate(2e9, 1000, 1)}, "from its send at 0 to its arrival at 500 ns"
    first = rows.copy()
    first["kind"], first["bytes"], first["end"] = Kind.ALLREDUCE, 4000, 2000
    second = first.copy()
    second["start"] = 1000
    replicas = Layout.of(RunSpec.model_validate({"parallel": {"dp": 2}}))
    assert rates([({0: first, 1: second}, replicas)]) == {"replicas": Rate(4e9, 4000, 2)}
    assert rates([({0: first}, Layout.of(RunSpec.model_validate({})))]) == {}


def test_what_if_names_the_same_speedup_with_free_communication(reader: Client, study: Study) -> None:
    """Its traced step took twice the median, as an odd one may: that is no part of the speedup."""
    run = study.runs.get(name="DP")
    timed = run.summary["timed"]
    run.summary["timed"] = {**timed, **{name: timed[name] / 2 for name in ("median", "p10", "p90", "mean")}}
    run.save(update_fields=["summary"])
    said = _answers(study)["What would the speedup be with free communication?"]
    ideal = re.search(r"DP would reach (\d+\.\d+x) ", said)
    page = plain(reader.get(f"/runs/{run.pk}/?tab=whatif").content.decode())
    assert ideal and f"{ideal[1]} of one device is the ideal speedup with free communication" in page


def test_communication_that_costs_nothing_gains_nothing() -> None:
    assert report_answers.freed("DP", 1.5, 1.2, 2) == "DP would reach 1.80x instead of 1.50x."
    assert report_answers.freed("TP", 1.5, 2.0, 2).endswith("1.50x, more than 2 devices give at the baseline's pace.")
    assert report_answers.freed("DP", 1.5, 1.001, 2).startswith("DP would stay at 1.50x: next to nothing")


def test_devices_are_held_against_a_speedup_over_one_device_alone(study: Study) -> None:
    """Two devices give the pace of a baseline of two, however idle they are there."""
    question, more = "What would the speedup be with free communication?", "more than 2 devices give"
    assert more in _answers(study)[question]
    study.baseline = study.runs.get(name="Naive layer-wise")
    assert "DP would reach 2.0" in _answers(study)[question] and more not in _answers(study)[question]


def test_free_communication_says_which_runs_were_not_replayed(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "What would the speedup be with free communication?"
    assert "replayed" not in _answers(study)[question]
    view = overview(study.runs.all(), study.baseline)
    labels = [row.entry.label for row in view.rows if row.run.devices > 1]
    steps = report_answers.steps_of(view)
    first = next(row.run.pk for row in view.rows if row.run.devices > 1)
    steps[first] = replace(steps[first], spans={**steps[first].spans, 0: steps[first].spans[0][:3]})
    said = {one.question: one.lines for one in report_answers.of_overview(view, steps)}[question]
    missing = (
        f"{len(labels) - 1} of {len(labels)} runs replayed. Not replayed, since spans of their steps are missing: "
    )
    assert f"{missing}{labels[0]}." in said
    monkeypatch.setattr(report_answers, "MOST_LEFT", 2)
    none, left = {one.question: one.lines for one in report_answers.of_overview(view, {})}[question]
    assert none.startswith("No traced step") and left.startswith(f"0 of {len(labels)} runs replayed.")
    assert left.endswith(f"since no step was traced by all ranks: {', '.join(labels[:2])}, {len(labels) - 2} more.")
    monkeypatch.setattr(report_answers, "READ", 0)
    slower = f"0 of {len(labels)} runs replayed. {len(labels)} runs not, as only the 0 fastest are read."
    assert slower in _answers(study)[question]


def test_of_many_runs_with_free_communication_a_few_have_a_line(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "What would the speedup be with free communication?"
    whole = _answers(study)[question]
    labels = [row.entry.label for row in overview(study.runs.all(), study.baseline).rows if row.run.devices > 1]
    every = sorted(re.findall(r"would (?:reach|stay at) (\S+x)", whole), key=lambda text: -float(text[:-1]))
    assert len(every) == len(labels) > 2 and "more would" not in whole
    monkeypatch.setattr(report_answers, "MOST_FREED", 2)
    said = _answers(study)[question]
    assert len(re.findall("would (?:reach|stay)", said)) == 3
    rest = every[2:]
    assert f"{len(rest)} more would reach {rest[-1]} to {rest[0]}." in said


def test_every_answer_is_of_the_numbers(study: Study) -> None:
    said = _answers(study)
    assert "the largest loss is bubble" in said["Which is fastest, which slowest, and why?"]
    assert "DP would reach " in said["What would the speedup be with free communication?"]
    alike = said["Do the ranks run the same operators?"]
    assert "DP, rank 0 against rank 1: The same " in alike and "different samples" in alike
    assert "PP-GPipe: rank 0 has embed to " in alike or "PP-1F1B: rank 0 has embed to " in alike, "ranks are named once"
    assert "less activations" in said["How does recomputation help?"]
    assert "layers would fit with" in said["How many layers fit?"]
    assert "Naive layer-wise + AR" in said["Is there a reason to use the slowest?"]


def test_layers_of_equal_runs_are_told_once(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    sizes = iter([900, 900, 700, 800, 500, 500, 500])

    def sized(row: Row) -> Row:
        return replace(row, entry=replace(row.entry, largest=next(sizes)))

    labels = [row.entry.label for row in view.rows[:7]]
    most, *rest = report_answers._layers(replace(view, rows=list(map(sized, view.rows[:7]))))
    assert labels[0] in most
    assert rest == [
        f"Next are {labels[3]}: 800, {labels[2]}: 700.",
        f"{labels[4]} and 2 others hold the fewest, 500. All are predicted.",
    ]


def test_answers_change_with_the_runs(alice: Any) -> None:
    study = factory.study(alice, "Plain", ({}, {"dp": 2}), recompute=False)
    said = _answers(study)
    assert said["How does recomputation help?"].startswith("Not measured")
    assert said["Is there a reason to use the slowest?"].startswith("Yes. Against DP, Single ")
    assert "sends nothing" in said["Is there a reason to use the slowest?"]
    alone = factory.study(alice, "One", ({},), recompute=False)
    assert _answers(alone) == {}


def test_report_needs_nothing_else_and_says_the_same(reader: Client, study: Study) -> None:
    text = reader.get(f"/studies/{study.pk}/report/").content.decode()
    view = overview(study.runs.all(), study.baseline)
    assert all(html.escape(sentence) in text for sentence in view.verdict)
    assert all(html.escape(chart.title) in text for chart in figures.of_overview(view).values())
    assert not re.search(r"<script|<link[^>]*stylesheet|<img|src=", text)
    assert "@media print" in text
    assert all(run.label in text for run in study.runs.all())


def test_only_what_is_known_of_both_is_said_to_be_no_worse(study: Study) -> None:
    """The slowest has all that the fastest has, so that no number speaks for it."""
    view = overview(study.runs.all(), study.baseline)
    done = [row for row in view.rows if row.entry.done and row.entry.result]
    fast, slow = done[0], replace(done[0], entry=replace(done[0].entry, label="Twin"))
    said = slowest.sentence(view, [fast, slow])
    assert said == (
        f"No number compared here speaks for Twin: {fast.entry.label} has the faster median, takes no more memory, "
        "holds no fewer layers and sends no more."
    )
    assert fast.entry.result is not None
    unmetered = replace(slow, entry=replace(slow.entry, result=replace(fast.entry.result, memory=None)))
    assert "memory" not in slowest.sentence(view, [fast, unmetered])
    unknown = replace(unmetered, entry=replace(unmetered.entry, largest=None))
    assert slowest.sentence(view, [fast, unknown]).endswith(" has the faster median and sends no more.")


def test_what_another_run_has_as_well_is_no_reason_to_use_the_slowest(study: Study) -> None:
    """1F1B is faster than the naive schedule with recomputation, takes less memory than it, and sends no more."""
    view = overview(study.runs.all(), study.baseline)
    done = {row.entry.label: row for row in view.by_time}
    fast, slow, other = (done[label] for label in ("DP", "Naive layer-wise + AR", "PP-1F1B + AR"))
    assert slowest.sentence(view, [fast, slow]).startswith("Yes. Against DP, Naive layer-wise + AR takes ")
    assert slowest.sentence(view, [fast, other, slow]) == (
        "No number compared here speaks for Naive layer-wise + AR: PP-1F1B + AR is faster, takes no more memory, "
        "holds no fewer layers and sends no more."
    )
    assert other.entry.result is not None
    unmetered = replace(other, entry=replace(other.entry, result=replace(other.entry.result, memory=None)))
    assert slowest.sentence(view, [fast, unmetered, slow]).startswith("Yes. "), "nobody knows what it takes"
    slow.run.spec["train"]["global_batch"] = 32
    assert slowest.sentence(view, [fast, other, slow]).startswith("No number"), "its loss was no reason"
