"""Repeats of the runs of a study of text generation, and runs that are queued again."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from django.test import Client

from dashboard.runs import cancelling, removal
from dashboard.runs.generation.generating import ONE
from dashboard.runs.models import Checkpoint, Run, State
from dashboard.studies import reruns
from dashboard.studies.generating import generation
from dashboard.studies.models import Study
from tests.dashboard.new_study import NEW
from tests.dashboard.text_studies import MIB, NAMES, asked, finish, run_of, verdict

pytestmark = pytest.mark.django_db


def test_of_repeats_the_median_one_is_compared(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="3"))
    study = Study.objects.get()
    assert [run.name for run in study.runs.order_by("position")][:3] == ["Single #1", "TP 2 #1", "Single #2"]
    for number, (single, tensor) in enumerate(((4e-3, 1e-3), (2e-3, 2e-3), (1e-3, 4e-3)), 1):
        finish(run_of(study, f"Single #{number}"), single, 6 * MIB)
        finish(run_of(study, f"TP 2 #{number}"), tensor, 5 * MIB)
    view = generation.of_runs(study.runs.all())
    assert [(row.label, round(row.rate or 0)) for row in view.compared] == [("Single", 1000), ("TP 2", 1000)]
    assert view.reference is not None and view.reference.label == "Single #1"
    assert "All 2 splits generate the same text." in verdict(client, study)


def test_of_an_even_number_of_repeats_each_figure_is_the_median(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="2"))
    study = Study.objects.get()
    for number, (single, tensor) in enumerate(((2e-3, 1e-3), (4e-3, 5e-4)), 1):
        finish(run_of(study, f"Single #{number}"), single, 6 * number * MIB)
        finish(run_of(study, f"TP 2 #{number}"), tensor, 4 * number * MIB)
    view = generation.of_runs(study.runs.all())
    assert [(row.label, row.rate, row.peak) for row in view.compared] == [
        ("TP 2", pytest.approx((2000 + 4000) / 2), 6 * MIB),
        ("Single", pytest.approx((1000 + 500) / 2), 9 * MIB),
    ]
    tokens = [row.token for row in view.compared if row.token]
    assert [(token.median, token.p90, token.n) for token in tokens] == [
        (pytest.approx(7.5e-4), pytest.approx(7.5e-4), 7),
        (pytest.approx(3e-3), pytest.approx(3e-3), 7),
    ]
    fast, slow = view.compared
    assert fast.speed and fast.speed.ratio == pytest.approx(3000 / 750) and slow.speed is None
    assert "4.00x (4.00x to 4.00x) the single device" in verdict(client, study)[0]


def test_the_single_device_has_no_speed_over_itself(client: Client, source: Run) -> None:
    client.post(NEW, asked(source, degrees="2x1x1", repeats="2"))
    study = Study.objects.get()
    for number, seconds in enumerate((2e-3, 4e-3), 1):
        finish(run_of(study, f"Single #{number}"), seconds, 6 * MIB)
        finish(run_of(study, f"TP 2 #{number}"), 1e-3, 6 * MIB)
    lines = client.get(f"/studies/{study.pk}/").context["lines"]
    assert {(line.row.split == ONE, line.row.speed is None) for line in lines} == {(True, True), (False, False)}
    rows = list(csv.DictReader(client.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()))
    assert {(row["split"].startswith("Single"), row["speedup"] == "") for row in rows} == {(True, True), (False, False)}


def test_cancelled_runs_are_queued_again_with_their_task(client: Client, study: Study, alice: Any) -> None:
    finish(run_of(study, "Single"), 2e-3, 6 * MIB)
    for run in study.runs.filter(state=State.QUEUED):
        cancelling.request_cancel(run=run, user=alice)
    task = run_of(study, "Single").task
    queued = reruns.run_again(study=study, user=alice, which=reruns.cancelled)
    assert [(run.name, run.task, run.resume_step) for run in queued] == [(name, task, 20) for name in NAMES[1:]]


def test_nothing_is_queued_again_from_a_checkpoint_that_is_gone(
    client: Client, study: Study, source: Run, alice: Any
) -> None:
    for run in study.runs.all():
        cancelling.request_cancel(run=run, user=alice)
    Checkpoint.objects.all().delete()
    refused: dict[int, str] = {}
    assert reruns.run_again(study=study, user=alice, which=reruns.cancelled, refused=refused) == []
    said = reruns.by_name(refused)
    assert list(said) == NAMES and "has no checkpoint at step 20" in said["TP 2"]
    button, gone = f"Run the {len(NAMES)} cancelled", "from a run that was deleted since"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert button in page and gone not in page
    removal.delete(runs=[source.pk], user=alice)
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert button not in page and gone in page
    refused.clear()
    assert reruns.run_again(study=study, user=alice, which=reruns.cancelled, refused=refused) == []
    assert set(refused.values()) == {"the run from whose checkpoint it began was deleted."}
