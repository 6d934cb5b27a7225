"""A run whose loss became NaN is still as fast: wherever it is called fastest, the lost loss is mentioned."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run, SeriesChunk, State
from dashboard.runs.page.verdict import verdict
from dashboard.studies import comparability
from dashboard.studies.models import Study
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import overview
from parallel_core.analysis.sentences import Result, fastest
from parallel_core.analysis.stats import Stats
from parallel_core.spec import RunSpec, TrainSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.test_swept_fields import READS

NAN = float("nan")


OTHER: dict[str, Any] = {"corpus": "blob:" + "0" * 64, "device": "cuda", "precision": "bf16", "clip": "stage"}
OTHER |= {"lr_schedule": "cosine", "optimizer": "sgd", "weights": "tiny"}
"""Other values of training fields that are not numbers."""


@pytest.mark.parametrize("field", TrainSpec.model_fields)
def test_runs_that_differ_in_a_training_field_compute_other_updates_unless_it_is_free(field: str) -> None:
    """So a field that is new is not ignored: who adds one says in `FREE` if it does not matter."""
    reads = READS.get(f"train.{field}", {})  # without which it says nothing
    spec = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 2}, **reads})
    old = getattr(spec.train, field)
    new = OTHER[field] if isinstance(old, str) else not old if isinstance(old, bool) else old + 1
    other = spec.model_copy(update={"train": spec.train.model_copy(update={field: new})})
    why = "is it read in this spec (READS of test_swept_fields), and is it in FREE only if it does not matter?"
    assert comparability.same_updates(spec, other) == (field in comparability.FREE), why
    assert comparability.same_updates(other, spec) == (field in comparability.FREE)


def test_every_training_field_is_of_one_kind() -> None:
    of = (comparability.SAME_TRAINING, comparability.FREE, comparability.APART)
    assert sorted(name for fields in of for name in fields) == sorted(TrainSpec.model_fields)


@pytest.fixture
def study(alice: Any) -> Study:
    made = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    rates = ((0.001, 0.0), (0.01, 0.5), (30.0, NAN))
    runs = [
        factory.finished(alice, {}, study=made, position=i, name=f"lr = {lr:g}", train={"lr": lr}, loss_shift=shift)
        for i, (lr, shift) in enumerate(rates)
    ]
    for run, median in zip(runs, (0.3, 0.2, 0.1), strict=True):
        summary = {**run.summary, "timed": {**run.summary["timed"], "median": median, "p10": median, "p90": median}}
        Run.objects.filter(pk=run.pk).update(summary=summary)
    made.baseline = runs[0]
    made.save(update_fields=("baseline",))
    return made


def test_the_fastest_of_a_study_is_said_to_have_no_loss(reader: Client, study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    first = next(text for text in view.verdict if "is fastest" in text)
    assert first.startswith("lr = 30") and first.endswith("; its loss is not finite any more.")
    assert not any(text.startswith("The loss of") for text in view.verdict), "it is said only once"
    assert "its loss is not finite any more" in plain(reader.get(f"/studies/{study.pk}/").content.decode())
    listed = plain(reader.get("/studies/").content.decode())
    assert ", lr = 0.001; next" in listed and "is fastest" not in listed, "a list says who trained best"


def test_another_run_without_a_loss_is_named_behind(study: Study) -> None:
    Run.objects.filter(study=study, name="lr = 0.01").update(loss=None)
    view = overview(study.runs.all(), study.baseline)
    assert "The loss of lr = 0.01 is not finite any more." in view.verdict


def test_tables_tell_a_lost_loss_from_one_that_is_not_there_yet(reader: Client, alice: Any, study: Study) -> None:
    factory.queued(alice, {})
    lost = study.runs.get(name="lr = 30")
    assert plain(reader.get(f"/studies/{study.pk}/").content.decode()).count("not finite") >= 1
    rows = reader.get("/runs/").content.decode()
    assert rows.count(">not finite<") == 1 and lost.diverged


def test_a_lower_loss_is_a_reason_to_use_the_slowest(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    said = {one.question: one.lines for one in report_answers.of_overview(view, {})}
    assert "ends at loss 2.731, where that of lr = 30 is not finite" in said["Is there a reason to use the slowest?"][0]
    Run.objects.filter(study=study, name="lr = 30").delete()
    view = overview(study.runs.all(), study.baseline)
    said = {one.question: one.lines for one in report_answers.of_overview(view, {})}
    assert "ends at loss 2.731 instead of 3.231" in said["Is there a reason to use the slowest?"][0]


def test_runs_of_other_rates_or_seeds_are_not_said_to_differ(alice: Any, study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    assert view.parities == {}
    told = "No other run is meant to compute what lr = 0.001 does: they differ in learning rate."
    assert view.parity_sentence == told
    seeds = [factory.finished(alice, {}, name=f"seed = {seed}", train={"seed": seed}) for seed in (7, 8)]
    assert overview(seeds, seeds[0]).parity_sentence.endswith(": they differ in seed.")


def test_a_finite_fastest_says_nothing_of_its_loss() -> None:
    quick, slow = (Result(name, Stats(t, t, t, t, 10)) for name, t in (("a", 1.0), ("b", 2.0)))
    assert "finite" not in fastest([quick, slow], slow)


@pytest.mark.parametrize(
    ("loss", "rose"),
    [
        ([0.02, 0.05, 0.01, 0.04, 0.02, 0.06, 0.01, 0.03, 0.02, 0.04, 0.01, 0.05], False),
        ([2.0, 9.0, 12.0, 8.0, 7.0, 6.5, 6.0, 5.6, 5.3, 5.0, 4.8, 4.6], True),
    ],
)
def test_one_batch_above_another_is_no_rise_of_a_run_that_goes_on(alice: Any, loss: list[float], rose: bool) -> None:
    run = factory.queued(alice, train={"steps": 100 + len(loss)})
    factory.feed_losses(factory.start(run), loss, first=100)
    factory.end(run, State.SUCCEEDED)
    assert verdict(run).sentence.startswith("The loss rose from 2 at step 100 to 4.6. ") is rose
    assert ("The loss rose" in verdict(run).sentence) is rose


def test_one_batch_that_is_far_off_at_the_end_is_no_rise(alice: Any) -> None:
    run = factory.queued(alice, train={"steps": 12})
    factory.feed_losses(factory.start(run), [2.9, 2.0, 1.0, 0.4, 0.2, 0.9, 0.1, 0.3, 0.05, 0.4, 0.1, 4.0])
    factory.end(run, State.SUCCEEDED)
    assert "The loss rose" not in verdict(run).sentence


def test_a_run_whose_losses_are_gone_has_a_verdict(alice: Any) -> None:
    """Its summary still has the last one."""
    run = factory.queued(alice, train={"steps": 4})
    factory.feed_losses(factory.start(run), [1.0, 2.0, 3.0, 4.0])
    factory.end(run, State.SUCCEEDED)
    assert verdict(run).sentence.startswith("The loss rose from 1 at step 0 to 4. ")
    SeriesChunk.objects.filter(attempt__run=run, name="loss").delete()
    assert "The loss rose" not in verdict(run).sentence
