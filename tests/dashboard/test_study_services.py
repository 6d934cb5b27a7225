"""Studies are created completely or not at all; what cannot run is named before anything is queued."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from dashboard.fleet.models import Worker
from dashboard.ledger.models import Prediction
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.axes import Axes, Swept
from dashboard.studies.new.estimate import estimate
from dashboard.studies.starter import create_starter
from parallel_core.plan.memory import worst_stage

BASE = {"model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 32}, "train": {"global_batch": 16}}
CALIBRATION = {
    "device": "cpu",
    "model": {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 256},
    "global_batch": 16,
    "step_time": 0.12,
}


def worker(devices: int = 2, **calibration: Any) -> Worker:
    listed = [{"index": i, "kind": "cpu", "name": f"core {i}"} for i in range(devices)]
    return Worker.objects.create(name="yard-a", devices=listed, calibration={**CALIBRATION, **calibration})


def test_starter_holds_everything_equal_but_the_strategy(alice: Any) -> None:
    study = create_starter(owner=alice, worker=worker())
    rows = list(study.runs.order_by("position"))
    assert [run.label for run in rows[:7]] == [
        "Single",
        "Single x4 micro-batches",
        "Naive layer-wise",
        "DP",
        "TP",
        "PP-GPipe",
        "PP-1F1B",
    ]
    assert [run.label for run in rows[7:]] == [f"{run.label} + AR" for run in rows[:7]]
    assert study.baseline == rows[0]
    assert all(run.exclusive for run in rows)
    assert len({str((run.spec["model"], run.spec["train"])) for run in rows}) == 1
    assert rows[2].spec["parallel"]["micro_batches"] == 1
    assert rows[5].spec["parallel"]["micro_batches"] == 4


def test_as_many_queries_create_many_runs_as_few(alice: Any, django_assert_max_num_queries: Any) -> None:
    worker()

    def created(strategies: list[str], repeats: int) -> Study:
        with django_assert_max_num_queries(20) as seen:
            made = services.create_matrix(
                owner=alice, name="S", base=BASE, axes=Axes(strategies, recompute=["none"]), repeats=repeats
            )
        counts.append(len(seen))
        return made

    counts: list[int] = []
    few, many = created(["single", "dp"], 1), created(["single", "dp", "tp", "naive"], 3)
    assert (few.runs.count(), many.runs.count()) == (2, 12) and counts[1] <= counts[0] + 1
    for run in many.runs.all():
        told = [(event.kind, event.text, event.actor) for event in run.events.all()]
        assert told == [("queued", f"Submitted by {alice.get_username()}.", alice)]
        said = Prediction.objects.get(run=run)
        assert said.memory == worst_stage(variants.RunSpec.model_validate(run.spec)).total
    assert [run.name for run in many.runs.order_by("position")][::4] == ["Single #1", "Single #2", "Single #3"]


@pytest.mark.parametrize("step_time", (0.05, 0.12, 0.2, 2.0))
def test_starter_is_sized_by_the_calibration(alice: Any, step_time: float) -> None:
    study = create_starter(owner=alice, worker=worker(step_time=step_time))
    timed = study.settings["timed_steps"]
    assert 10 <= timed <= 40
    specs = [variants.RunSpec.model_validate(run.spec) for run in study.runs.all()]
    minutes = estimate(specs, {**CALIBRATION, "step_time": step_time}).minutes
    assert minutes is not None
    assert timed == 10 or minutes <= 4


def test_starter_on_one_device_says_so(alice: Any) -> None:
    study = create_starter(owner=alice, worker=worker(devices=1))
    assert {run.devices for run in study.runs.all()} == {1}
    assert "one device" in study.settings["note"]


def test_starter_adapts_the_micro_batches_to_the_batch(alice: Any) -> None:
    study = create_starter(owner=alice, worker=worker(global_batch=6))
    assert study.settings["micro_batches"] == [3]


def test_uncalibrated_worker_is_refused(alice: Any) -> None:
    blank = Worker.objects.create(name="new", devices=[])
    with pytest.raises(Invalid):
        create_starter(owner=alice, worker=blank)


def test_matrix_crosses_all_axes_and_names_differ(alice: Any) -> None:
    study = services.create_matrix(
        owner=alice,
        name="all",
        base=BASE,
        axes=Axes(["single", "dp", "1f1b"], precisions=["fp32", "fp64"], micro_batches=[2, 4]),
    )
    names = [run.name for run in study.runs.all()]
    assert len(names) == len(set(names)) == 2 * 2 * (1 + 1 + 2)
    assert "PP-1F1B + AR, m = 4, fp64" in names


def test_what_cannot_run_is_left_out_with_its_rule() -> None:
    plan = variants.matrix(BASE, Axes(["single", "tp", "gpipe", "dp-tp"], micro_batches=[4, 5]))
    reasons = {s.name: s.reason for s in plan.skipped}
    assert "5 micro-batches do not divide" in reasons["PP-GPipe, m = 5"]
    assert reasons["DP x TP"].startswith("needs 4 devices")
    three_heads = {**BASE, "model": {**BASE["model"], "heads": 1}}
    plan = variants.matrix(three_heads, Axes(["tp"], recompute=["none"]))
    assert not plan.variants
    assert "does not divide heads=1" in plan.skipped[0].reason


def test_settings_keep_what_was_asked_for_in_json() -> None:
    axes = Axes(("gpipe", "1f1b"), splits=("2-1",), micro_batches=range(2, 5), devices=3)
    asked = json.loads(json.dumps(axes.asked()))
    assert asked == axes.asked() and variants.matrix(BASE, Axes(**asked)) == variants.matrix(BASE, axes)
    for swept in (Swept("train.lr", ("1", "2")), Swept("train.lr", ("1",), "train.seed", ("1", "2"))):
        asked = json.loads(json.dumps(swept.asked()))
        assert asked == swept.asked() and variants.sweep(BASE, Swept(**asked)) == variants.sweep(BASE, swept)


def test_repeats_go_round(alice: Any) -> None:
    study = services.create_matrix(
        owner=alice, name="twice", base=BASE, axes=Axes(["single", "dp"], recompute=["none"]), repeats=2
    )
    assert [run.name for run in study.runs.order_by("position")] == ["Single #1", "DP #1", "Single #2", "DP #2"]


def test_sweep_of_any_field(alice: Any) -> None:
    study = services.create_sweep(
        owner=alice, name="batch", base=BASE, swept=Swept("train.global_batch", ["8", "16", "-1", "x", "16"])
    )
    assert [run.spec["train"]["global_batch"] for run in study.runs.order_by("position")] == [8, 16]
    assert [name for name, _ in study.settings["skipped"]] == [
        "Global batch = -1",
        "Global batch = x",
        "Global batch = 16",
    ]


def test_unknown_field_is_refused(alice: Any) -> None:
    with pytest.raises(Invalid):
        services.create_sweep(owner=alice, name="x", base=BASE, swept=Swept("train.__class__", ["1"]))


PIPELINES = ["single", "single-m", "gpipe", "1f1b"]


@pytest.mark.parametrize(
    ("change", "field"),
    (
        ({"name": " "}, "name"),
        ({"name": "n" * 121}, "name"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 999}, "repeats"),
        ({"axes": Axes([])}, "plan"),
        (
            {
                "axes": Axes(PIPELINES, micro_batches=range(1, 150)),
                "base": {**BASE, "train": {"global_batch": 2**7 * 3**3 * 5 * 7}},
            },
            "",
        ),
    ),
)
def test_bad_input_queues_nothing(alice: Any, change: dict[str, Any], field: str) -> None:
    asked: dict[str, Any] = {"name": "s", "base": BASE, "axes": Axes(PIPELINES)}
    if not field:
        change, field = {**change, "repeats": 20}, "plan"
    with pytest.raises(Invalid) as caught:
        services.create_matrix(owner=alice, **{**asked, **change})
    assert field in caught.value.field_errors
    assert not Study.objects.exists()
    assert not Run.objects.exists()


def test_viewers_create_nothing(bob: Any) -> None:
    with pytest.raises(PermissionDenied):
        services.create_matrix(owner=bob, name="s", base=BASE, axes=Axes(["single"]))
    assert not Study.objects.exists()


def test_estimate_without_calibration_promises_no_minutes() -> None:
    plan = variants.matrix(BASE, Axes(["single", "dp"]))
    found = estimate([v.spec for v in plan.variants], None, repeats=3)
    assert (found.runs, found.devices, found.minutes) == (12, 2, None)
