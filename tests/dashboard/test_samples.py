"""Samples of a run that went on from a checkpoint of another batch: those of the run before it count as they were."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from django.apps import apps

from dashboard.charts import loss
from dashboard.runs import removal
from dashboard.runs.models import Run, State
from dashboard.runs.samples import samples_after, samples_shift
from dashboard.studies import compare, selectors
from dashboard.studies.overview import figures
from tests.dashboard import factory


def resumed(owner: Any, source: Run, step: int, batch: int) -> Run:
    run = factory.finished(owner, {}, train={"global_batch": batch})
    run.resume_run, run.resume_step = source, step
    run.save(update_fields=("resume_run", "resume_step"))
    return run


def test_each_run_before_it_counts_with_its_own_batch(alice: Any) -> None:
    first = factory.finished(alice)
    second = resumed(alice, first, 100, 32)
    third = resumed(alice, second, 150, 8)
    assert [samples_shift(run) for run in (first, second, third)] == [0, -1600, 2000]
    assert samples_after(second, 100) == 1600
    assert samples_after(third, 150) == 100 * 16 + 50 * 32
    assert samples_after(resumed(alice, first, 100, 16), 100) == 1600, "with the same batch nothing is shifted"
    removal.delete(runs=[second.pk], user=alice)
    third.refresh_from_db()
    assert samples_shift(third) is None and samples_after(third, 150) is None


def test_the_line_over_samples_begins_where_the_run_before_it_ended(alice: Any) -> None:
    first = factory.finished(alice)
    second = resumed(alice, first, 100, 32)
    view = selectors.overview([first, second], first)
    at = [row.run.pk for row in view.rows].index(second.pk)
    axes = figures.losses(view).figure["layout"]["meta"]["axes"]
    assert axes["samples"][at] == [step * 32 - 1600 for step in axes["step"][at]]
    lines = compare.time_to_loss(view).lines
    seen = {line.label: int(line.samples.replace("\N{NO-BREAK SPACE}", "")) for line in lines}
    steps = {line.label: int(line.step) for line in lines}
    label = next(row.entry.label for row in view.rows if row.run.pk == second.pk)
    assert seen[label] == (steps[label] + 1) * 32 - 1600


def test_what_went_on_from_a_deleted_run_still_begins_after_its_steps(alice: Any) -> None:
    first, other = factory.finished(alice), factory.finished(alice)
    second = resumed(alice, first, 100, 32)
    removal.delete(runs=[first.pk], user=alice)
    second.refresh_from_db()
    view = selectors.overview([other, second], other)
    label = next(row.entry.label for row in view.rows if row.run.pk == second.pk)
    assert {line.samples for line in compare.time_to_loss(view).lines if line.label == label} == {"not known"}
    assert compare.begun(view.rows).startswith(f"Not like for like: {label} begins after 100 trained steps")
    one = selectors.overview([other, resumed(alice, other, 1, 16)], other)
    assert "begins after 1 trained step, " in compare.begun(one.rows)


def test_a_line_whose_samples_are_not_known_is_left_out_of_that_axis_alone() -> None:
    steps, values = np.arange(3, dtype=np.int32), np.arange(3, dtype=np.float64)
    made = loss.chart([loss.Curve("gone", steps, values, values, 3, 16, samples_shift=None)], "title", "measured")
    axes = made.figure["layout"]["meta"]["axes"]
    assert axes["samples"] == [[None] * 3] and axes["step"] == [[0, 1, 2]]
    assert f"no line of gone over samples, {loss.UNCOUNTED}" in made.source


def test_what_went_on_from_a_run_deleted_by_an_earlier_version_begins_after_its_steps_too(alice: Any) -> None:
    """That version forgot the step with the run. What went on from its own checkpoint began with step 0."""
    first = factory.finished(alice)
    second, retried, plain = resumed(alice, first, 100, 32), factory.finished(alice), factory.finished(alice)
    for run, step, source in ((second, 100, first.pk), (retried, 0, 0), (retried, 40, retried.pk), (plain, 0, 0)):
        attempt = factory.start(run)
        attempt.begins = {"step": step, "run": source, "attempt": 1, "why": ""}
        attempt.save()
    later = factory.start(second)
    later.begins = {"step": 120, "run": second.pk, "attempt": 2, "why": ""}
    later.save()
    Run.objects.update(state=State.SUCCEEDED)
    removal.delete(runs=[first.pk], user=alice)
    Run.objects.filter(pk=second.pk).update(resume_step=None)
    import_module("dashboard.runs.migrations.0021_lost_beginnings").find_steps(apps, None)
    for run in (second, retried, plain):
        run.refresh_from_db()
    assert [run.resume_step for run in (second, retried, plain)] == [100, None, None]
    assert samples_shift(second) is None and samples_shift(retried) == 0
