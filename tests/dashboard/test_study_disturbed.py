"""A study page judges by quiet runs alone, and pairs runs by what they do and not by their names."""

from __future__ import annotations

import csv
import html
import io
import re
from typing import Any

from django.test import Client

from dashboard.charts.chart import pairs
from dashboard.studies.models import Study
from dashboard.studies.overview import answers, figures
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.plain import plain


def test_recomputation_is_paired_by_spec_and_not_by_name(alice: Any) -> None:
    made = Study.objects.create(name="Renamed", owner=alice)
    factory.finished(alice, {}, study=made, name="plain")
    factory.finished(alice, {"recompute": "full"}, study=made, position=1, name="again")
    factory.finished(alice, {"dp": 2, "recompute": "full"}, study=made, position=2, name="plain + AR")
    view = overview(made.runs.all())
    paired = [(a.label, b.label) for a, b in pairs(view.entries)]
    assert paired == [("plain", "again")]
    answer = next(a for a in answers.of_overview(view) if a.question == "Recomputation")
    assert answer.detail.endswith("1 pair.")


def test_disturbance_is_counted_over_what_was_measured_and_warned_of_first(alice: Any) -> None:
    made = Study.objects.create(name="Noisy", owner=alice)
    factory.finished(alice, {}, study=made, cpu_others=0.3)
    factory.finished(alice, {"dp": 2}, study=made, position=1, cpu_others=0.02)
    factory.finished(alice, {"tp": 2}, study=made, position=2, cpu_others=0.41)
    factory.queued(alice, {"pp": 2}, study=made, position=3)
    view = overview(made.runs.all())
    answer = next(a for a in answers.of_overview(view) if a.question == "CPU of others")
    assert (answer.answer, answer.detail.split(" runs")[0]) == ("41 %", "2 of 3 measured")
    assert view.verdict[0].startswith("2 of 3 runs were disturbed: other processes took up to 41 %")
    listed = Client()
    listed.force_login(alice)
    page = listed.get(f"/studies/{made.pk}/").content.decode()
    assert 'disturbed: others used <span class="whole">41 %</span>' in page.split('id="table"')[1]
    page = plain(page)
    (first,) = re.findall(r'<p class="verdict">(.*?)</p>', page, re.S)
    said = [html.escape(sentence) for sentence in view.verdict]
    assert said[0] in first and said[1] in first and len(said) > 2
    assert not any(sentence in first for sentence in said[2:]) and " ".join(said[2:]) in page
    assert all(len(sentence.split()) <= 25 for sentence in view.verdict)
    assert f"{view.verdict[0]} {html.escape(view.verdict[1])}" in plain(listed.get("/studies/").content.decode())
    assert figures.steps(view).title == view.verdict[1], "a chart's title is a finding"
    bars = figures.speedups(view)
    shapes = bars.figure["data"][0]["marker"]["pattern"]["shape"]
    assert [shape == "x" for shape in shapes] == [row.entry.disturbed for row in view.rows[:3]]


def test_a_run_with_other_processes_on_its_gpu_is_hatched_without_a_share(alice: Any) -> None:
    made = Study.objects.create(name="Shared", owner=alice)
    run = factory.finished(alice, {}, study=made)
    made.runs.update(summary={**run.summary, "cpu_others": None, "other_processes": 2})
    view = overview(made.runs.all())
    (row,) = view.rows
    assert (
        row.entry.disturbed and row.entry.disturbed_by == "other processes on one GPU: 2" and row.entry.others is None
    )
    may = " may have been disturbed: other processes were on its GPUs. Whether they used them is not known, so repeat"
    assert any(may in text for text in view.verdict)
    subtitle = figures.speedups(view).subtitle
    assert subtitle.endswith("; cross-hatched = disturbed: other processes on one GPU: 2")


def test_shares_that_restarts_lost_are_told_where_no_other_is_known(alice: Any) -> None:
    made = Study.objects.create(name="Restarted", owner=alice)
    run = factory.finished(alice, {}, study=made)
    for summary, told in (
        ({"cpu_others": None, "others_missing": True}, [("not known", "of 1 run that was restarted.")]),
        ({"cpu_others": None, "others_missing": False}, []),
    ):
        made.runs.update(summary={**run.summary, **summary})
        found = answers.of_overview(overview(made.runs.all()))
        assert [(a.answer, a.detail) for a in found if a.question == "CPU of others"] == told


def test_a_study_of_one_timed_step_says_that_more_are_needed(alice: Any) -> None:
    """Its runs were called different with an interval of no width."""
    made = Study.objects.create(name="Short", owner=alice)
    train = {"steps": 4, "warmup_steps": 3}
    for position, split in enumerate(({}, {"dp": 2}, {"tp": 2})):
        factory.finished(alice, split, study=made, position=position, train=train)
    view = overview(made.runs.all())
    assert {result.step.n for result in view.results} == {1}
    assert view.verdict[0].startswith("3 of 3 runs have fewer than 5 timed steps") and view.warned_first == 1
    assert "within noise (1 timed step)" in view.on_times and "±" not in " ".join(view.verdict)
    reader = Client()
    reader.force_login(alice)
    page = plain(reader.get(f"/studies/{made.pk}/").content.decode())
    assert view.verdict[0] in page and page.count("within noise (1 timed step)</span>") == 2
    bars = figures.speedups(view)
    assert [row[2] for row in bars.rows] == ["1 timed step"] * 3
    table = list(csv.DictReader(io.StringIO(reader.get(f"/studies/{made.pk}/table.csv").content.decode())))
    assert [line["timed_steps"] for line in table] == ["1"] * 3
    assert all(line["speedup"] and not line["speedup_low"] and not line["speedup_high"] for line in table)


def test_one_run_with_too_few_timed_steps_is_said_after_the_answer(alice: Any) -> None:
    made = Study.objects.create(name="Mixed", owner=alice)
    factory.finished(alice, {}, study=made)
    factory.finished(alice, {"tp": 2}, study=made, position=1)
    factory.finished(alice, {"dp": 2}, study=made, position=2, train={"steps": 5, "warmup_steps": 3})
    view = overview(made.runs.all())
    assert view.warned_first == 0 and "1 of 3 runs has fewer than 5 timed steps" in " ".join(view.verdict[1:])


def test_a_disturbed_baseline_is_said_before_every_ratio_over_it(alice: Any) -> None:
    made = Study.objects.create(name="Base", owner=alice)
    for position, (split, others) in enumerate((({}, 0.63), ({"dp": 2}, 0.0), ({"tp": 2}, 0.0))):
        factory.finished(alice, split, study=made, position=position, cpu_others=others)
    said = overview(made.runs.all()).verdict
    assert said[0].startswith("The baseline, Single, was disturbed: other processes took 63 %")
    assert "is fastest" in said[1] and any(sentence.startswith("1 of 3 runs was disturbed") for sentence in said)
    reader = Client()
    reader.force_login(alice)
    assert " ".join(map(html.escape, said[:2])) in plain(reader.get("/studies/").content.decode())


def test_what_recomputation_costs_is_read_from_quiet_pairs_alone(alice: Any) -> None:
    made = Study.objects.create(name="AR", owner=alice)
    for position, (split, others) in enumerate((({}, 0.6), ({"dp": 2}, 0.0))):
        for i, how in enumerate(("none", "full")):
            noise = 0.0 if i else others
            factory.finished(
                alice, {**split, "recompute": how}, study=made, position=2 * position + i, cpu_others=noise
            )
    plain, again = (made.runs.get(position=i).summary["timed"]["median"] for i in (2, 3))
    (answer,) = answers.recomputation(overview(made.runs.all()))
    assert answer.detail.startswith(f"in 2 pairs, for a step {round(100 * abs(again / plain - 1))} % ")
    assert "in the 1 that nothing disturbed" in answer.detail
    made.runs.filter(position__in=(0, 1)).delete()
    (answer,) = answers.recomputation(overview(made.runs.all()))
    assert answer.detail.endswith(" longer: 1 pair.")
    twin = made.runs.get(position=3)
    twin.summary = {**twin.summary, "timed": {**twin.summary["timed"], "median": 0.99 * plain, "p10": 0.9 * plain}}
    twin.save(update_fields=["summary"])
    (answer,) = answers.recomputation(overview(made.runs.all()))
    assert answer.detail == "for a step 1 % shorter, within noise: 1 pair.", "doing work again saves no time"
    made.runs.filter(position=3).delete()
    factory.finished(alice, {"dp": 2, "recompute": "full"}, study=made, position=3, cpu_others=0.5)
    (answer,) = answers.recomputation(overview(made.runs.all()))
    assert answer.detail.startswith("in 1 pair; what it costs in time is not known")


def test_pipelines_are_held_against_the_same_micro_batches_on_one_device(alice: Any) -> None:
    made = Study.objects.create(name="Fair", owner=alice)
    single, micro, pipe = (
        factory.finished(alice, split, study=made, position=i)
        for i, split in enumerate(({}, {"micro_batches": 4}, {"pp": 2, "micro_batches": 4}))
    )
    view = overview([single, micro, pipe], single)
    answer = next(a for a in answers.of_overview(view) if a.question == "Pipelining alone")
    ratio = micro.summary["timed"]["median"] / pipe.summary["timed"]["median"]
    assert answer.answer == f"{ratio:.2f}x"
    assert "PP-1F1B over Single x4 micro-batches" in answer.detail
    assert not any(a.question == "Pipelining alone" for a in answers.of_overview(overview([single, pipe], single)))
