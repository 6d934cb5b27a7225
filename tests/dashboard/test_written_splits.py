"""A matrix compares splits that a person writes: stages of different sizes, own schedules, layers that recompute."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run
from dashboard.schedules.glossary import words_of
from dashboard.studies import services
from dashboard.studies.comparability import same_updates
from dashboard.studies.fitting import fit
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.axes import Axes
from dashboard.studies.new.written import Again, OwnSchedule, StageSplit, read_schedules, schedules_text
from dashboard.studies.overview import answers
from dashboard.studies.selectors import overview
from parallel_core.schedule import compute_only
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.table import to_csv, to_json
from tests.dashboard import factory
from tests.dashboard.new_study import NEW, SWEEP

BASE = {"model": {"layers": 4, "hidden": 32, "heads": 4, "seq": 32}, "train": {"global_batch": 16}}
WIDE = to_csv(compute_only("gpipe", 4, 2))
"""A schedule over four ranks."""


@pytest.mark.parametrize(
    ("text", "fields", "world", "shown"),
    [
        ("2-1", {"pp": 2, "replicas": (2, 1), "tp": 1}, 3, "2-1"),
        (" 15 - 1 ", {"pp": 2, "replicas": (15, 1), "tp": 1}, 16, "15-1"),
        ("2x1-1x2", {"pp": 2, "replicas": (2, 1), "widths": (1, 2)}, 4, "2x1-1x2"),
        ("1×2-1", {"pp": 2, "dp": 1, "widths": (2, 1)}, 3, "1x2-1x1"),
        ("2-2-2", {"pp": 3, "dp": 2, "tp": 1}, 6, "2-2-2"),
        ("2x2-1x2", {"pp": 2, "replicas": (2, 1), "tp": 2}, 6, "2x2-1x2"),
    ],
)
def test_a_split_is_written_stage_by_stage(text: str, fields: dict[str, Any], world: int, shown: str) -> None:
    split = StageSplit.read(text)
    assert (split.fields, split.world, str(split)) == (fields, world, shown)
    assert StageSplit.read(str(split)) == split


@pytest.mark.parametrize(
    ("text", "layers", "label", "shown"),
    [
        ("0, 2", (0, 2), "AR of layers 0, 2", "0, 2"),
        ("layers 2 0 2", (0, 2), "AR of layers 0, 2", "0, 2"),
        ("full 3", (3,), "AR of layer 3", "3"),
        ("Selective layers 0,1,2", (0, 1, 2), "selective AR of layers 0 to 2", "selective 0, 1, 2"),
        ("0 2 4 6 8", (0, 2, 4, 6, 8), "AR of 5 layers", "0, 2, 4, 6, 8"),
    ],
)
def test_layers_that_recompute_are_a_list(text: str, layers: tuple[int, ...], label: str, shown: str) -> None:
    again = Again.read(text)
    assert (again.layers, again.label, str(again)) == (layers, label, shown)
    assert Again.read(str(again)) == again


def test_several_schedules_begin_with_their_names_and_one_needs_none() -> None:
    as_json = to_json(compute_only("gpipe", 2, 2))
    assert read_schedules(f"\r\n{EXAMPLE}\r\n".replace("\n", "\r\n")) == [OwnSchedule("", EXAMPLE)]
    found = read_schedules(f"# mine\n{EXAMPLE}\n\n#other one \n{json.dumps(json.loads(as_json), indent=1)}\n")
    assert [(own.name, own.world, own.schedule.micro_batches) for own in found] == [("mine", 2, 4), ("other one", 2, 2)]
    assert read_schedules(schedules_text(found)) == found
    assert read_schedules(" \n") == []


def test_each_pipeline_is_followed_by_its_splits_and_own_schedules_end_the_list() -> None:
    plan = variants.matrix(
        BASE,
        Axes(
            ["dp", "gpipe", "1f1b", "1f1b-stash", "tp"],
            splits=["2-1", "2x1-1x2"],
            schedules=[["mine", EXAMPLE], ["wide", WIDE]],
            recompute=["none"],
            layers=["0, 2"],
            devices=4,
        ),
    )
    plain = [
        "DP 4",
        "TP 4",
        "PP-GPipe 4",
        "PP-1F1B 4",
        "PP-1F1B 2-1",
        "PP-1F1B 2-1 x TP 1-2",
        "PP-1F1B async, stashed 4",
        "PP-1F1B async, stashed 2-1",
        "PP-1F1B async, stashed 2-1 x TP 1-2",
    ]
    own = ["mine", "wide"]
    assert [variant.name for variant in plan.variants] == [
        *plain,
        *(f"PP-Custom{' 4' if name == 'wide' else ''}, {name}" for name in own),
        *(f"{name} + AR of layers 0, 2" for name in plain),
        *(f"PP-Custom{' 4' if name == 'wide' else ''} + AR of layers 0, 2, {name}" for name in own),
    ]
    splits = {variant.name: variant.spec.parallel for variant in plan.variants}
    streamed = splits["PP-1F1B async, stashed 2-1 x TP 1-2"]
    assert (streamed.replicas, streamed.widths, streamed.micro_batches) == ((2, 1), (1, 2), 4)
    assert (splits["PP-Custom 4, wide"].program, splits["PP-Custom 4, wide"].micro_batches) == (WIDE, 2)
    assert splits["DP 4 + AR of layers 0, 2"].recompute_layers == (0, 2)
    reasons = {gone.name: gone.reason for gone in plan.skipped}
    assert "schedule=gpipe does not; use" in reasons["PP-GPipe 2-1"]
    assert set(reasons) == {
        f"PP-GPipe {split}{again}" for split in ("2-1", "2x1-1x2") for again in ("", " + AR of layers 0, 2")
    }


def test_what_needs_more_devices_than_the_study_has_is_left_out() -> None:
    plan = variants.matrix(
        BASE, Axes(["1f1b"], splits=["2-1"], schedules=[["wide", WIDE]], recompute=["none"], devices=2)
    )
    assert [(gone.name, gone.reason) for gone in plan.skipped] == [
        ("PP-1F1B 2-1", "needs 3 devices; this study has 2."),
        ("PP-Custom, wide", "needs 4 devices; this study has 2."),
    ]


def test_no_two_runs_of_a_study_have_one_name() -> None:
    deep = {**BASE, "model": {**BASE["model"], "layers": 8}}
    lists = ["0, 1, 2, 4, 5", "0, 1, 2, 4, 6"]
    plan = variants.matrix(deep, Axes(["single"], recompute=[], layers=lists))
    assert [variant.name for variant in plan.variants] == ["Single + AR of 5 layers", "Single + AR of 5 layers (2)"]


def test_names_that_are_too_long_are_cut_so_that_number_and_repeat_have_room(yard: Client) -> None:
    lists = [", ".join(map(str, range(first, 60))) for first in (0, 1)]
    values = "; ".join(lists)
    pipeline = {"parallel__dp": "1", "model__layers": "60", "train__global_batch": "16"}
    asked = {**SWEEP, **pipeline, "parallel__recompute": "full", "field": "parallel.recompute_layers"}
    again = "; ".join(f"{own}, 60, 61" for own in lists[1:])
    deep = {**asked, "model__layers": "62", "values": f"{values}; {lists[0]}, 60; {again}", "repeats": "2"}
    assert yard.post(NEW, deep).status_code == 302
    names = list(Run.objects.order_by("position").values_list("name", flat=True))
    assert len(set(names)) == 8 and max(map(len, names)) <= 120
    assert names[0].endswith("… #1") and names[2].endswith("… (2) #1") and names[6].endswith("… (2) #2")


def test_a_wide_split_has_a_name_that_its_precision_and_its_layers_still_fit_behind() -> None:
    deep = {"model": {**BASE["model"], "layers": 64}, "train": {"global_batch": 64}}
    split = "-".join(["2", "1"] * 32)
    asked: dict[str, Any] = {"strategies": ["1f1b"], "splits": [split], "recompute": ["none"], "devices": 96}
    plan = variants.matrix(deep, Axes(**asked, precisions=["fp32", "bf16"], micro_batches=[32, 64]))
    wide = [variant.name for variant in plan.variants if len(variant.spec.parallel.copies) == 64]
    assert len(wide) == 4 and all(len(name) == variants.MOST_CALLED for name in wide)
    assert wide[-1].startswith("PP-1F1B 2-1-2-1") and wide[-1].endswith("…, m = 64, bf16")
    name = fit.run_name(f"{wide[-1]} (1000)", 1024)
    assert len(name) <= 120 and name.endswith("…, m = 64, bf16 (1000), 1024 layers")
    assert len(fit.run_name("x" * 300, 7)) == 120


def test_neighbouring_splits_have_as_many_micro_batches_over_all_replicas() -> None:
    plan = variants.matrix(
        {**BASE, "train": {"global_batch": 48}},
        Axes(
            ["1f1b", "1f1b-stash", "naive", "dp-pp"],
            splits=["2-1", "2-2", "2x2-2x1", "1-1"],
            recompute=["none"],
            micro_batches=[4, 8],
            devices=6,
        ),
    )
    found = {variant.name: variant.spec.parallel for variant in plan.variants}
    for m in (4, 8):
        of = [f"PP-1F1B 2-1, m = {m}", f"DP 2 x PP-1F1B 2, 2-2, m = {m}", f"PP-1F1B, m = {m}"]
        assert [(found[name].per_step, found[name].dp) for name in of] == [(m, 1), (m, 2), (m, 1)]
        assert found[f"DP 2 x TP 2-1 x PP-1F1B 2, 2x2-2x1, m = {m}"].per_step == m
        assert found[f"DP 2 x PP-1F1B async, stashed 2, 2-2, m = {m}"].per_step == m
    assert found["DP 2 x Naive layer-wise 2, 2-2"].micro_batches == 1, "its number is none to choose"
    assert found["DP 3 x PP-1F1B 2, m = 4"].per_step == 12, "of a product it is that of a replica"


def test_micro_batches_that_equal_replicas_cannot_share_are_left_out_with_the_reason() -> None:
    plan = variants.matrix(BASE, Axes(["1f1b"], splits=["2-2"], recompute=["none"], micro_batches=[1, 2], devices=4))
    assert [(gone.name, gone.reason) for gone in plan.skipped] == [
        (
            "PP-1F1B, 2-2, m = 1",
            "m = 1 counts over all replicas, and does not divide evenly over 2 of each stage; choose a multiple of 2.",
        )
    ]


def test_a_page_of_such_runs_says_what_their_names_mean() -> None:
    plan = variants.matrix(
        BASE,
        Axes(
            ["1f1b"],
            splits=["2-1", "3-1", "1x2-1x1"],
            schedules=[["", EXAMPLE]],
            recompute=["none"],
            layers=["0", "1"],
            devices=4,
        ),
    )
    words = words_of(variant.spec for variant in plan.variants)
    assert [word.name for word in words] == [
        "PP-1F1B",
        "Micro-batches",
        "Bubble",
        "DP",
        "2-1",
        "TP",
        "TP 2-1",
        "PP-Custom",
        "AR",
        "AR of layer 0",
    ]


def test_what_some_layers_save_is_not_what_all_save(alice: Any, redis_url: str) -> None:
    study = Study.objects.create(name="AR", owner=alice)
    for split in ({}, {"recompute": "full"}, {"recompute": "full", "recompute_layers": [0]}):
        factory.finished(alice, split, study=study)
    found = answers.recomputation(overview(study.runs.all()))
    assert [answer.question for answer in found] == ["Recomputation", "AR of layer 0"]
    assert all("1 pair" in answer.detail for answer in found)


def test_each_list_of_layers_has_an_answer_of_its_own(
    alice: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(factory.BASE, "model", {**factory.BASE["model"], "layers": 8})
    study = Study.objects.create(name="AR", owner=alice)
    lists = ([0], [0, 1, 2, 4, 5], [0, 1, 2, 4, 6])
    for split in ({}, *({"recompute": "full", "recompute_layers": own} for own in lists)):
        factory.finished(alice, split, study=study)
    selective = {"recompute": "selective", "recompute_layers": [0]}
    factory.finished(alice, selective, study=study)
    found = answers.recomputation(overview(study.runs.all()))
    assert [answer.question for answer in found] == [
        "AR of layer 0",
        "selective AR of layer 0",
        "AR of 5 layers: 0, 1, 2, 4, 5",
        "AR of 5 layers: 0, 1, 2, 4, 6",
    ]
    assert all("1 pair" in answer.detail for answer in found)


def test_streams_of_other_stages_update_otherwise() -> None:
    plan = variants.matrix(BASE, Axes(["1f1b", "1f1b-stash"], splits=["2-1"], recompute=["none", "full"], devices=3))
    found = {variant.name: variant.spec for variant in plan.variants}
    stash, flush = "PP-1F1B async, stashed", "PP-1F1B"
    assert same_updates(found[f"{flush} 3"], found[f"{flush} 2-1"])
    assert same_updates(found[f"{stash} 2-1"], found[f"{stash} 2-1 + AR"])
    assert not same_updates(found[f"{stash} 3"], found[f"{stash} 2-1"])


def test_a_study_by_name_of_what_cannot_be_read_is_refused(alice: Any) -> None:
    with pytest.raises(ValueError, match="no split by stage"):
        services.create_matrix(owner=alice, name="s", base=BASE, axes=Axes(["1f1b"], splits=["two"]))
    assert not Study.objects.exists()
