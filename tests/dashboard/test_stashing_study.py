"""The study "what stashing buys": what it runs, and what its page says about weight versions, time to a loss, and
memory.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.charts import target, versions
from dashboard.charts.target import Reach
from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.overview import streams
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import overview
from parallel_core.analysis.target import MOST, least, reached, smoothed, window
from parallel_core.analysis.versions import Use, uses
from parallel_core.schedule import build
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW
from tests.dashboard.plain import unmarked
from tests.dashboard.study_charts import charts_of

NAMES = ["1f1b", "1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw"]
ASKED = {**MATRIX, "kind": "stashing", "name": "Stashing", "devices": "2", "micro_batches": "4", "timed_steps": "20"}


@pytest.fixture
def study(alice: Any) -> Study:
    """A study with every variant of the plan finished."""
    made = Study.objects.create(name="Stashing", owner=alice, kind="stashing", base=factory.BASE)
    plan = variants.stashing(factory.BASE, devices=2, micro_batches=4, timed_steps=40)
    for i, variant in enumerate(plan.variants):
        factory.finished(
            alice,
            variant.spec.parallel.model_dump(mode="json"),
            train={"clip": "stage"},
            study=made,
            position=i,
            name=variant.name,
            loss_shift=0.01 * i,
        )
    made.baseline = made.runs.order_by("position").first()
    made.save()
    return made


def test_plan_is_1f1b_in_all_its_kinds_and_dp() -> None:
    plan = variants.stashing(factory.BASE, devices=2, micro_batches=4, timed_steps=40)
    assert [variant.spec.parallel.schedule for variant in plan.variants[:-1]] == NAMES
    assert plan.variants[-1].spec.parallel.dp == 2
    assert {variant.spec.train.clip for variant in plan.variants} == {"stage"}
    assert {variant.spec.train.steps for variant in plan.variants} == {43}
    assert not plan.skipped


def test_what_cannot_run_is_left_out_with_its_reason() -> None:
    plan = variants.stashing(factory.BASE, devices=4, micro_batches=2)
    assert [(skipped.name, skipped.reason.split(";")[0]) for skipped in plan.skipped] == [
        ("PP-2BW", "schedule=1f1b-2bw with pp=4 needs at least 3 micro-batches, or two versions do not last"),
        (
            "PP-1F1B async, stashed 3-1",
            "schedule=1f1b-stash with replicas=3-1 needs at least 3 micro-batches a step, got 2",
        ),
    ]


def test_from_three_devices_on_stages_have_different_numbers_of_replicas(alice: Any) -> None:
    plan = variants.stashing(factory.BASE, devices=3, micro_batches=4, timed_steps=40)
    assert [skipped.name for skipped in plan.skipped] == ["DP"]  # the batch is not divisible by three
    made = {variant.name: variant.spec for variant in plan.variants}
    uneven = made["PP-1F1B async, stashed 2-1"]
    assert (uneven.parallel.replicas, uneven.parallel.world) == ((2, 1), 3)
    study = Study.objects.create(name="Stashing", owner=alice, kind="stashing", base=factory.BASE)
    for name in ("PP-1F1B async, stashed 3", "PP-1F1B async, stashed 2-1"):
        split = made[name].parallel.model_dump(mode="json")
        factory.finished(alice, split, train={"clip": "stage"}, study=study, name=name)
    charts, _ = streams.of_overview(overview(study.runs.all()), None)
    assert "stashed 2-1" in str(charts["versions"])


def test_it_is_asked_for_in_the_form(alice: Any) -> None:
    factory.worker()
    client = Client()
    client.force_login(alice)
    assert "What stashing buys" in client.get(f"{NEW}?kind=stashing").content.decode()
    answer = client.post(NEW, ASKED)
    assert answer.status_code == 302, answer.content.decode()
    assert [run.name for run in Run.objects.order_by("position")] == [
        "PP-1F1B",
        "PP-1F1B async, no stash",
        "PP-1F1B async, stashed",
        "PP-1F1B async, vertical sync",
        "PP-2BW",
        "DP",
    ]


def page(client: Client, address: str) -> str:
    return re.sub(r"\s+", " ", client.get(address).content.decode())


def test_page_has_versions_target_and_memory(study: Study, alice: Any) -> None:
    client = Client()
    client.force_login(alice)
    text = page(client, f"/studies/{study.pk}/")
    assert "Weight versions" in text and "Time to a loss" in text
    first = re.search(r'<p class="verdict"><strong>(.+?)</strong>', text)
    assert first and " reaches loss " in first[1], "a shorter step alone says nothing where updates differ"
    listed = page(client, "/studies/")
    assert f"<p>{first[1]} " in listed or f"<p>{first[1]}</p>" in listed, "the list begins with what the page does"
    assert text.count('id="target"') == 1 and text.index('id="target"') < text.index('aria-label="Speedup"')
    assert "Memory against DP" in text
    assert "PP-1F1B async, no stash goes backward through weights 1 micro-batch newer than forward." in text
    # not even DP, which clips all gradients together
    assert "No other run is meant to compute what PP-1F1B does" in text
    charts = charts_of(client, study)
    assert {"versions", "target"} <= charts.keys()
    rows = charts["target"]["rows"]
    assert len(rows) == 6
    said = charts["target"]["title"]
    assert " last, in " in said and said != first[1], "a sentence is not said twice"
    assert all(row[2] != "never" for row in rows), "the default target is a loss that every run reaches"


@pytest.mark.full
def test_the_report_has_them_too(study: Study, alice: Any) -> None:
    client = Client()
    client.force_login(alice)
    report = client.get(f"/studies/{study.pk}/report/").content.decode()
    charts, told = streams.of_overview(overview(study.runs.all(), study.baseline), None)
    assert set(charts) == {"versions", "target"} and told
    assert charts["versions"].title in report
    raced = charts["target"]
    assert isinstance(raced, target.TargetChart)
    seen = unmarked(report)
    assert seen.count(raced.title) == 1 == seen.count(raced.rest), "who is first is said above, who is last here"
    assert [one.question in report for one in told] == [True, True]
    assert '/report/?target=3">' in client.get(f"/studies/{study.pk}/?target=3").content.decode()
    report = page(client, f"/studies/{study.pk}/report/?target=5")
    assert "reaches loss 5 " in report
    chosen = f"baseline={study.baseline_id}&amp;target=5"
    assert f'/studies/{study.pk}/?{chosen}">The live page' in report
    assert f'<a href="?download=1&amp;{chosen}">' in report


@pytest.mark.full
def test_the_loss_to_reach_stands_in_the_address(study: Study, alice: Any) -> None:
    client = Client()
    client.force_login(alice)
    far = charts_of(client, study, "?target=0.001")["target"]
    assert far["title"] == "No run reaches loss 0.001."
    assert {row[2] for row in far["rows"]} == {"never"}
    for wrong in ("nan", "a%3Cb", "1e400"):
        shown = page(client, f"/studies/{study.pk}/?target={wrong}")
        assert "Loss to reach must be a number; got " in shown and " The lowest that all reach is shown." in shown
        assert client.get(f"/studies/{study.pk}/report/?target={wrong}").status_code == 200
    assert "Loss to reach must be" not in page(client, f"/studies/{study.pk}/?target=")


def test_studies_that_flush_have_neither(alice: Any) -> None:
    study = factory.study(alice, "Plain", factory.SPLITS[:2], recompute=False)
    assert streams.of_overview(overview(study.runs.all(), study.baseline), None) == ({}, [])


def test_losses_of_other_rules_are_not_held_against_each_other(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    assert view.baseline is not None and view.baseline.spec.parallel.schedule == "1f1b"
    assert all(row.parity is None for row in view.rows if not row.spec.parallel.flushes)


def test_versions_are_those_of_the_schedule() -> None:
    spec = RunSpec.model_validate(
        {
            "parallel": {"pp": 2, "micro_batches": 3, "schedule": "1f1b-naive"},
            "train": {"global_batch": 3, "clip": "stage"},
        }
    )
    made = uses(build(spec))
    assert made == [
        *(Use(0, i, forward, i, late) for i, (forward, late) in enumerate([(0, 0), (0, 1), (1, 1)])),
        *(Use(1, i, i, i, 0) for i in range(3)),
    ]
    chart = versions.chart([versions.Grid(["Naive"], made)], "the schedule")
    assert chart.figure["data"][0]["text"][0] == ["0", "0 → 1", "1 → 2"]
    assert chart.rows == [
        ["Naive", "0", "0 0 1", "0 1 2", "0.667", "1"],
        ["Naive", "1", "0 1 2", "0 1 2", "0", "0"],
    ]
    assert chart.title == "Naive goes backward through weights 1 micro-batch newer than forward."
    grids = [versions.Grid(["Naive"], made), versions.Grid(["Another", "A third"], made)]
    assert versions.chart(grids[1:], "the schedule").title.startswith("Another and A third go backward through")
    assert versions.chart(grids, "the schedule").title.startswith("Naive and 2 more go backward through")


def test_runs_of_one_schedule_share_a_grid_only_if_they_use_the_same_versions(alice: Any) -> None:
    study = Study.objects.create(name="Stashing", owner=alice, kind="stashing", base=factory.BASE)
    for pp, micro_batches in ((2, 4), (4, 4), (2, 8)):
        split = {"pp": pp, "micro_batches": micro_batches, "schedule": "1f1b-stash"}
        factory.queued(alice, split, train={"clip": "stage"}, study=study)
    charts, _ = streams.of_overview(overview(study.runs.all()), None)
    first = {row[2][:11] for row in charts["versions"].rows if row[1] == "0"}
    assert first == {"0 0 1 2 3 4", "0 0 0 0 1 2"} and len(charts["versions"].rows) == 6


def test_every_run_of_a_shared_grid_is_named_and_counted(alice: Any) -> None:
    study = Study.objects.create(name="Stashing", owner=alice, kind="stashing", base=factory.BASE)
    split = {"pp": 2, "micro_batches": 4, "schedule": "1f1b-stash"}
    for name in ("Seed 1", "Seed 2"):
        factory.queued(alice, split, train={"clip": "stage"}, study=study, name=name)
    factory.queued(alice, {**split, "pp": 4}, train={"clip": "stage"}, study=study, name="Deep")
    charts, _ = streams.of_overview(overview(study.runs.all()), None)
    made = charts["versions"]
    assert made.title == "3 of 3 runs go backward through the weights of their forward."
    assert {row[0] for row in made.rows} == {"Seed 2, Seed 1", "Deep"}
    assert "Seed 2 and Seed 1, stage 1" in made.figure["layout"]["yaxis"]["ticktext"]


def test_a_phone_shows_as_many_micro_batches_as_can_be_read(study: Study) -> None:
    charts, _ = streams.of_overview(overview(study.runs.all(), study.baseline), None)
    axis = charts["versions"].figure["layout"]["meta"]["narrow"]["xaxis"]
    assert axis["range"] == [-0.5, 5.5] and axis["title"]["text"] == "micro-batch, the first 6 of 16"


def test_a_loss_counts_as_reached_when_its_mean_does() -> None:
    loss = np.array([9.0, 8, 1, 8, 8, 2, 2, 2, 2, 2])
    assert window([10, 300]) == 5 and window([10**6]) == MOST
    assert smoothed(loss, 3)[0] == 6
    assert reached(loss, 2.0, 3) == 7
    assert least(loss, 3) == 2
    assert reached(loss, 1.5, 3) is None
    assert least([np.nan] * 4, 3) == np.inf


def test_title_and_speedup_are_those_of_the_numbers() -> None:
    runs = [
        Reach("A", "pp", 1.0, 10, 4.0, baseline=True),
        Reach("B", "pp", 0.9, 12, 2.0),
        Reach("C", "dp", 3, None, None),
    ]
    chart = target.chart(runs, 1.25, 5)
    assert chart.title == "B reaches loss 1.25 in 2 s, 2.00x the speed of A."
    assert [row[-2] for row in chart.rows] == ["1.00x", "2.00x", ""]
    assert chart.rest == "Loss 1.25 was not reached by C."
    assert target.chart(runs[:2], 1.25, 5).rest == "A reaches loss 1.25 last, in 4 s and 10 steps; B needs 12."
    assert target.chart(runs[:1], 1.25, 5).rest == "A reaches loss 1.25 last, in 4 s and 10 steps."
    many = target.chart([*runs, *runs[2:] * 3], 1.25, 5).rest
    assert many == "Loss 1.25 was not reached by C, C, C and 1 more."
    assert target.chart([runs[0], runs[2]._replace(goes_on=True)], 1.25, 5).rest.startswith(
        "Loss 1.25 is not reached yet"
    )
    assert target.chart(runs[2:], 1.25, 5).rest == "No run reaches loss 1.25."
    assert "disturbed" not in chart.subtitle and {row[-1] for row in chart.rows} == {""}


def test_a_run_with_fewer_losses_than_are_averaged_has_too_few_of_them(study: Study) -> None:
    """Each is finite, so that it is not their mean that is not."""
    short = factory.finished(study.owner, train={"steps": 4, "warmup_steps": 0}, study=study, position=9, name="short")
    view = overview(study.runs.all(), study.baseline)
    found = streams.race(view)
    assert found.reaches[short.pk].least is None and found.goal is not None
    rows = target.chart(list(found.reaches.values()), found.goal, found.over).rows
    assert [row[1:4] for row in rows if row[0] == "short"] == [["too few losses", "never", "never"]]
    diverged = Reach("A", "pp", np.inf, None, None)
    assert target.chart([diverged], 1.25, 5).rows[0][1] == "not finite"


def test_more_updates_in_a_step_are_said_with_the_speed_to_a_loss() -> None:
    """They are why an asynchronous pipeline needs fewer steps; its full stages only shorten them."""
    runs = [Reach("A", "pp", 1.0, 40, 4.0, baseline=True), Reach("B", "pp", 0.9, 12, 2.0, updates=4)]
    said = target.chart(runs, 1.25, 5).title
    assert said == "B reaches loss 1.25 in 2 s, 2.00x the speed of A, with 4 updates a step instead of 1."
    unlike = [runs[0], runs[1]._replace(updates=0)]
    assert "updates" not in target.chart(unlike, 1.25, 5).title


def test_what_stashing_alone_buys_is_an_answer_of_its_own(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    found = streams.race(view)
    assert {row.entry.label: found.reaches[row.run.pk].updates for row in view.rows} == {
        **dict.fromkeys(("PP-1F1B", "PP-2BW", "DP"), 1),
        **dict.fromkeys((f"PP-1F1B async, {how}" for how in ("no stash", "stashed", "vertical sync")), 4),
    }
    steps = {row.spec.parallel.schedule: found.reaches[row.run.pk].step for row in view.rows}
    (alone,) = [one for one in streams.of_overview(view, None)[1] if one.question == "Stashing alone"]
    assert alone.answer == f"{steps['1f1b-stash']} steps"
    assert f"stashed; PP-1F1B async, no stash needs {steps['1f1b-naive']}. Worst rank: " in alone.detail
    asked = streams.of_overview(view, 0.001)[1]
    assert [one.question for one in asked] == ["Memory against DP"], "nobody reaches that loss"


@pytest.mark.parametrize(("others", "words"), [(0, ""), (1, ", before 1 other"), (2, ", before 2 others")])
def test_a_first_one_without_a_baseline_is_before_the_others(others: int, words: str) -> None:
    runs = [Reach("B", "pp", 0.9, 12, 2.0), *(Reach("A", "pp", 1.0, 10, 4.0) for _ in range(others))]
    runs.append(Reach("C", "dp", 3, None, None))
    assert target.chart(runs, 1.25, 5).title == f"B reaches loss 1.25 in 2 s{words}."


def test_a_time_to_a_loss_that_others_disturbed_says_so() -> None:
    runs = [Reach("A", "pp", 1.0, 10, 4.0, baseline=True, others=0.25), Reach("B", "pp", 0.9, 12, 2.0)]
    chart = target.chart(runs, 1.25, 5)
    layout = chart.figure["layout"]
    assert chart.title.endswith("2.00x the speed of A; others disturbed A (25 % of one device).")
    told = target.chart(runs, 1.25, 5, warned=True).title
    assert told.endswith("2.00x the speed of A."), "the verdict has begun with how many were disturbed"
    wide, phone = (axis["range"][1] for axis in (layout["xaxis"], layout["meta"]["narrow"]["xaxis"]))
    assert phone > 1.5 * wide > 4, "a phone has room for the words behind the longest bar"
    assert "hatched = disturbed, +25 %" in chart.subtitle and [row[-1] for row in chart.rows] == ["25 %", ""]
    (bars,) = chart.figure["data"]
    assert bars["marker"]["pattern"]["shape"] == ["x", ""] and bars["text"] == ["4.00 s  +25 %", "2.00 s, 2.00x"]


def test_the_study_knows_which_of_its_times_to_a_loss_were_disturbed(study: Study, alice: Any) -> None:
    run = study.runs.order_by("position").first()
    assert run is not None
    run.summary = {**run.summary, "cpu_others": 0.4}
    run.save(update_fields=("summary",))
    client = Client()
    client.force_login(alice)
    chart = charts_of(client, study)["target"]
    assert sorted(row[-1] for row in chart["rows"])[-2:] == ["", "40 %"]
    both = ",".join(str(pk) for pk in study.runs.order_by("position").values_list("pk", flat=True)[:2])
    text = page(client, f"/compare/?runs={both}")
    table = text[text.index("Time to a loss of") :].partition("</table>")[0]
    assert table.count('disturbed: others used <span class="whole">40 %</span>') == 1


@pytest.mark.full
@pytest.mark.parametrize(("shift", "speaks"), [(0.5, True), (-0.5, False)])
def test_an_earlier_loss_speaks_for_the_slowest(alice: Any, shift: float, speaks: bool) -> None:
    """`shift`: how far the losses of the fastest run are above those of the slowest."""
    study = Study.objects.create(name="Stashing", owner=alice, kind="stashing", base=factory.BASE)
    plan = variants.stashing(factory.BASE, devices=2, micro_batches=4, timed_steps=40)
    made = {variant.spec.parallel.schedule: variant.spec for variant in plan.variants[:-1]}
    for name in ("1f1b", "1f1b-stash"):
        split = made[name].parallel.model_dump(mode="json")
        moved = shift if name == "1f1b" else 0.0
        factory.finished(alice, split, train={"clip": "stage"}, study=study, name=name, loss_shift=moved)
    view = overview(study.runs.all())
    assert [row.spec.parallel.schedule for row in view.rows] == ["1f1b", "1f1b-stash"], "fastest first"
    said = report_answers.of_overview(view, {})[1]
    assert said.question == "Is there a reason to use the slowest?"
    assert (re.search(r"reaches loss [\d.]+ in .* s instead of ", said.lines[0]) is not None) is speaks, said.lines


def test_free_communication_names_the_pipelines_that_cannot_be_replayed(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    asked = report_answers.of_overview(view, report_answers.steps_of(view))
    (free,) = [one for one in asked if one.question == "What would the speedup be with free communication?"]
    left = [row.entry.label for row in view.rows if not row.spec.parallel.flushes]
    assert len(left) == 4 and free.lines[2].startswith(
        "2 of 6 runs replayed. Not replayed, since their pipelines never"
    )
    assert all(label in free.lines[2] for label in left) and free.lines[2] in free.first


def test_a_run_that_still_trains_has_not_reached_the_loss_yet(alice: Any, study: Study) -> None:
    running = factory.queued(alice, {"dp": 2}, study=study, position=9, train={"clip": "stage"}, name="Late")
    factory.feed_steps(factory.start(running), 12)
    rows = {row[0]: row[2:4] for row in streams.of_overview(overview(study.runs.all()), 0.1)[0]["target"].rows}
    assert rows.pop("Late") == ["not yet", "not yet"]
    assert rows and all(cells == ["never", "never"] for cells in rows.values())
