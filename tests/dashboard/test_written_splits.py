"""A matrix compares splits that a person writes: stages of different sizes, own schedules, layers that recompute."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.runs.models import Run
from dashboard.schedules.glossary import words_of
from dashboard.studies import answers, feasible, fit, services, sweepable, variants
from dashboard.studies.comparability import same_updates
from dashboard.studies.matrix_form import MatrixForm
from dashboard.studies.models import Study
from dashboard.studies.selectors import overview
from dashboard.studies.written import Again, OwnSchedule, StageSplit, read_schedules, schedules_text
from parallel_core.plan import memory
from parallel_core.plan.backward import walked
from parallel_core.schedule import compute_only
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.table import to_csv, to_json
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.test_study_form import MATRIX, NEW, SWEEP, preview

BASE = {"model": {"layers": 4, "hidden": 32, "heads": 4, "seq": 32}, "train": {"global_batch": 16}}
ASKED: dict[str, Any] = {
    **MATRIX,
    "model__layers": "4",
    "strategies": ["1f1b"],
    "recompute": ["none"],
    "micro_batches": "4",
    "devices": "4",
}
WIDE = to_csv(compute_only("gpipe", 4, 2))
"""A schedule over four ranks."""


@pytest.fixture
def yard(member: Client, redis_url: str) -> Client:
    """A member's client, and a fleet of four devices."""
    factory.worker(devices=4)
    return member


def error_at(page: str, field: str) -> str:
    return html.unescape(page.split(f'id="error-{field}"')[1].split(">", 1)[1].split("</p>")[0])


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
        strategies=["dp", "gpipe", "1f1b", "1f1b-stash", "tp"],
        splits=["2-1", "2x1-1x2"],
        schedules=[["mine", EXAMPLE], ["wide", WIDE]],
        recompute=["none"],
        layers=["0, 2"],
        devices=4,
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
        BASE, strategies=["1f1b"], splits=["2-1"], schedules=[["wide", WIDE]], recompute=["none"], devices=2
    )
    assert [(gone.name, gone.reason) for gone in plan.skipped] == [
        ("PP-1F1B 2-1", "needs 3 devices; this study has 2."),
        ("PP-Custom, wide", "needs 4 devices; this study has 2."),
    ]


def test_no_two_runs_of_a_study_have_one_name() -> None:
    deep = {**BASE, "model": {**BASE["model"], "layers": 8}}
    lists = ["0, 1, 2, 4, 5", "0, 1, 2, 4, 6"]
    plan = variants.matrix(deep, strategies=["single"], recompute=[], layers=lists)
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
    plan = variants.matrix(deep, **asked, precisions=["fp32", "bf16"], micro_batches=[32, 64])
    wide = [variant.name for variant in plan.variants if len(variant.spec.parallel.copies) == 64]
    assert len(wide) == 4 and all(len(name) == variants.MOST_CALLED for name in wide)
    assert wide[-1].startswith("PP-1F1B 2-1-2-1") and wide[-1].endswith("…, m = 64, bf16")
    name = fit.run_name(f"{wide[-1]} (1000)", 1024)
    assert len(name) <= 120 and name.endswith("…, m = 64, bf16 (1000), 1024 layers")
    assert len(fit.run_name("x" * 300, 7)) == 120


def test_neighbouring_splits_have_as_many_micro_batches_over_all_replicas() -> None:
    plan = variants.matrix(
        {**BASE, "train": {"global_batch": 48}},
        strategies=["1f1b", "1f1b-stash", "naive", "dp-pp"],
        splits=["2-1", "2-2", "2x2-2x1", "1-1"],
        recompute=["none"],
        micro_batches=[4, 8],
        devices=6,
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
    plan = variants.matrix(
        BASE, strategies=["1f1b"], splits=["2-2"], recompute=["none"], micro_batches=[1, 2], devices=4
    )
    assert [(gone.name, gone.reason) for gone in plan.skipped] == [
        (
            "PP-1F1B, 2-2, m = 1",
            "m = 1 counts over all replicas, and does not divide evenly over 2 of each stage; choose a multiple of 2.",
        )
    ]


def test_the_examples_of_the_help_run_at_the_defaults_on_the_devices_that_it_names(yard: Client) -> None:
    form = yard.get(NEW).context["form"]
    examples = re.findall(r"(\d[x\d]*(?:-\d[x\d]*)+) \((\d) devices\)", form["splits"].help_text)
    assert [split for split, _ in examples] == ["2-1", "2x1-1x2"]
    values = {name: form[name].value() for name in form.fields if form[name].value() not in (None, False)}
    for split, devices in examples:
        filled = MatrixForm({**values, "splits": split, "devices": devices, "strategies": ["1f1b"]})
        assert filled.is_valid(), filled.errors
        plan = filled.plan()
        assert not plan.skipped and any(split.replace("x1", "")[:3] in one.name for one in plan.variants)


def test_a_long_text_of_layers_is_read_in_one_pass_and_a_longer_one_is_refused(yard: Client) -> None:
    """With two gaps around a word that may be absent, such a text takes minutes: pytest's limit ends the test."""
    for text in ("full" + " " * 500_000 + "x", "layers" + " " * 500_000 + "x"):
        with pytest.raises(ValueError, match="names no layers"):
            Again.read(text)
    page = yard.post(NEW, {**ASKED, "layers": "0; " * 6000}).content.decode()
    assert error_at(page, "layers") == "Write at most 16384 characters; these are 17999."
    page = yard.post(NEW, {**ASKED, "splits": "2-1, " * 4000}).content.decode()
    assert error_at(page, "splits") == "Write at most 16384 characters; these are 19999."


def test_own_schedules_have_a_size_together_and_the_field_says_so(yard: Client) -> None:
    many = "\n".join(f"# {i}\n{'0F0,' * 20_000}" for i in range(7))
    page = yard.post(NEW, {**ASKED, "schedules": many}).content.decode()
    told = "The schedules of a study have at most 512 KiB together; these have 560000 characters."
    assert error_at(page, "schedules") == told
    assert "at most 512 KiB together" in yard.get(NEW).content.decode()


def test_a_preview_checks_own_schedules_for_memory_as_far_as_it_has_time(
    yard: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of one run that cannot fit: the preview finds the first ones, and Queue the others."""
    monkeypatch.setattr(feasible, "PREVIEWED_PROGRAMS", 2 * len(EXAMPLE))
    big = {"model__hidden": "8192", "model__layers": "16", "train__global_batch": "16"}
    asked = {**ASKED, **big, "strategies": ["1f1b"], "schedules": EXAMPLE, "recompute": ["none", "full"]}
    asked["precisions"] = ["fp32", "fp64"]
    said = preview(yard, asked)
    assert said.count("<strong>PP-Custom") == 2 and said.count("<strong>PP-1F1B 4") == 4
    assert "Whether 2 of them fit is seen when they are queued" in said
    answer = yard.post(NEW, asked)
    assert answer.status_code == 422 and "Nothing is left to run" in answer.content.decode()
    monkeypatch.undo()
    assert "of them fit" not in preview(yard, asked)


def test_steps_too_long_to_predict_their_memory_are_told_from_own_schedules(
    yard: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an interleaved pipeline more operations are walked through than of the own schedule."""
    asked = {**ASKED, "strategies": ["interleaved"], "schedules": EXAMPLE}
    specs = [row["spec"] for row in yard.post(NEW, {**asked, "preview": "1"}).context["preview"]["rows"]]
    many, few = sorted((walked(spec.parallel) for spec in specs), reverse=True)
    monkeypatch.setattr(memory, "MOST_WALKED", few)
    assert few < many and [memory.counted(spec) for spec in specs].count(False) == 1
    said = preview(yard, asked)
    assert "Whether 1 of them fits is seen when they run: memory is not predicted for steps this long." in said
    assert "schedules of your own take time" not in said
    monkeypatch.setattr(feasible, "PREVIEWED_PROGRAMS", 0)
    both = preview(yard, asked)
    assert "schedules of your own take time" in both and "predicted for steps this long" in both


def test_the_form_queues_what_is_written_and_its_clone_says_it_again(yard: Client) -> None:
    written = {"splits": "2-1, 2x1-1x2", "schedules": f"# mine\n{EXAMPLE}", "layers": "0,2; selective 1"}
    said = preview(yard, {**ASKED, **written})
    assert "<strong>12 runs</strong> on up to <strong>4 devices</strong>" in said
    assert "<li>PP-1F1B 2-1 x TP 1-2 <span" in said and "<li>PP-Custom + selective AR of layer 1, mine <span" in said
    assert yard.post(NEW, {**ASKED, **written}).status_code == 302
    study = Study.objects.get()
    runs = {run.name: RunSpec.model_validate(run.spec).parallel for run in study.runs.all()}
    assert len(runs) == 12
    assert runs["PP-1F1B 2-1 + AR of layers 0, 2"].replicas == (2, 1)
    assert runs["PP-Custom, mine"].program == EXAMPLE
    assert runs["PP-1F1B 4 + selective AR of layer 1"].recompute == "selective"
    form = yard.get(NEW, {"clone": study.pk}).context["form"]
    assert form["splits"].value() == "2-1, 2x1-1x2"
    assert form["layers"].value() == "0, 2; selective 1"
    assert form["schedules"].value() == f"# mine\n{EXAMPLE}"
    page = yard.get(f"/studies/{study.pk}/").content.decode()
    assert "PP-1F1B 2-1 x TP 1-2" in page and "PP-Custom + AR of layers 0, 2, mine" in page
    assert "Replicas of each stage. The first stage is there as often as the first number says" in page


def test_own_schedules_or_some_layers_alone_make_a_study(yard: Client) -> None:
    alone = {**ASKED, "strategies": [], "recompute": [], "schedules": EXAMPLE, "layers": "1"}
    assert "<li>PP-Custom + AR of layer 1 <span" in preview(yard, alone)
    assert yard.post(NEW, alone).status_code == 302
    assert Run.objects.get().spec["parallel"]["recompute_layers"] == [1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("splits", "2-x", "“2-x” is no split by stage; write the replicas of each stage, such as 2-1, or its"),
        ("splits", "2-1, 3", "“3” has 1 stage; write 2 to 1026 of them, such as 2-1."),
        ("splits", "2-0", "Each number of “2-0” must be from 1 to 16384."),
        ("splits", "2-1, 4-1", "“4-1” needs 5 devices, and Devices is 4; set it to 5, or write a smaller one."),
        ("layers", "0-2", "“0-2” names no layers; write their numbers from 0 on, such as 0, 2"),
        ("layers", "some 2", "“some 2” names no layers"),
        ("layers", "0; 2, 4", "There is no layer 4: this model's count from 0 to 3."),
        ("schedules", "0F0,nonsense", "Cell 2 of rank 0's row"),
        ("schedules", f"# a\n{EXAMPLE}\n# b\n0F0", "In “b”, "),
        (
            "schedules",
            f"{EXAMPLE}\n# b\n{EXAMPLE}",
            "Schedule 1 of 2 has no name; begin each with a line “# its name”.",
        ),
        ("schedules", f"# a\n{EXAMPLE}\n# a\n{EXAMPLE}", "Two schedules are called “a”; give each its own name."),
        ("schedules", f"# a\x00b\n{EXAMPLE}", "has characters that cannot be printed; write another name."),
        ("schedules", f"# {'n' * 41}\n{EXAMPLE}", "has 41 characters; a name has at most 40."),
        ("schedules", "\n".join(f"# {i}\n{EXAMPLE}" for i in range(17)), "Write at most 16 schedules; these are 17."),
        (
            "schedules",
            f"# deep\n{to_csv(compute_only('gpipe', 5, 2))}",
            "“deep” needs 5 devices, and Devices is 4; set it to 5, or write a smaller one.",
        ),
        ("recompute", [], "Choose at least one of without, selective and full."),
        ("strategies", [], "Choose at least one strategy."),
    ],
)
def test_what_is_wrong_is_said_at_its_field(yard: Client, field: str, value: Any, message: str) -> None:
    answer = yard.post(NEW, {**ASKED, field: value})
    assert answer.status_code == 422 and not Study.objects.exists()
    assert message in error_at(answer.content.decode(), field)


def test_stages_need_a_pipeline_among_the_strategies(yard: Client) -> None:
    page = yard.post(NEW, {**ASKED, "strategies": ["dp", "dp-pp"], "splits": "2-1"}).content.decode()
    assert error_at(page, "splits") == ("Only pipelines have stages; choose one among the strategies, such as PP-1F1B.")


def test_a_rule_that_leaves_a_split_out_is_said_in_the_words_of_the_form(yard: Client) -> None:
    said = preview(yard, {**ASKED, "strategies": ["gpipe"], "splits": "2-1"})
    assert "<strong>PP-GPipe 2-1</strong> Replicas of each stage = 2-1 gives micro-batches to replicas in turn" in said


def test_a_schedule_may_come_as_a_file_and_goes_behind_the_others(yard: Client) -> None:
    file = SimpleUploadedFile("wide one.csv", WIDE.encode())
    answer = yard.post(NEW, {**ASKED, "schedules": f"# mine\n{EXAMPLE}", "schedule_file": file})
    assert answer.status_code == 302
    assert [name for name, _ in Study.objects.get().settings["schedules"]] == ["mine", "wide one"]
    names = set(Run.objects.values_list("name", flat=True))
    assert names == {"PP-1F1B 4", "PP-Custom, mine", "PP-Custom 4, wide one"}


@pytest.mark.parametrize(
    ("data", "field", "told"),
    [
        (b"", "schedule_file", "A schedule has 1 byte to 512 KiB; this file has 0 bytes."),
        (b"0F0,\xff", "schedule_file", "byte 4 is not UTF-8"),
        (b"0F0,nonsense", "schedules", "In “own”, cell 2 of rank 0's row"),
    ],
)
def test_a_file_that_is_no_schedule(yard: Client, data: bytes, field: str, told: str) -> None:
    answer = yard.post(NEW, {**ASKED, "schedule_file": SimpleUploadedFile("own.csv", data)})
    assert answer.status_code == 422 and not Study.objects.exists()
    assert told.lower() in error_at(answer.content.decode(), field).lower()


def test_a_search_for_the_most_layers_takes_splits(yard: Client) -> None:
    asked = {**ASKED, "kind": "fit", "cap": "8", "splits": "2-1", "schedules": "0F0,nonsense", "layers": "x"}
    assert "<li>PP-1F1B 2-1, " in preview(yard, asked), "own schedules and some layers are no part of that form"
    assert "Choose at least one strategy." in yard.post(NEW, {**asked, "strategies": []}).content.decode()
    file = {"schedule_file": SimpleUploadedFile("own.csv", b"\xff")}
    assert yard.post(NEW, {**asked, **file}).status_code == 302
    assert Run.objects.get(label="PP-1F1B 2-1").spec["parallel"]["replicas"] == [2, 1]


@pytest.mark.parametrize(
    ("field", "values", "stored"),
    [
        ("parallel.replicas", "2-1; 1 3; none", [[2, 1], [1, 3], None]),
        ("parallel.widths", "1-2; 2, 1", [[1, 2], [2, 1]]),
        ("parallel.cuts", "3; 4", [[3], [4]]),
        ("parallel.recompute_layers", "0; 0, 2;; 1 2", [[0], [0, 2], [1, 2]]),
    ],
)
def test_lists_are_swept_too(yard: Client, field: str, values: str, stored: list[Any]) -> None:
    pipeline = {"parallel__dp": "1", "parallel__pp": "2", "parallel__micro_batches": "4", "model__layers": "4"}
    asked = {**SWEEP, **pipeline, "parallel__recompute": "full", "field": field, "values": values}
    assert yard.post(NEW, asked).status_code == 302
    leaf = field.split(".")[1]
    assert [run.spec["parallel"][leaf] for run in Run.objects.order_by("position")] == stored
    again = yard.get(NEW, {"clone": Study.objects.get().pk}).context["form"]["values"].value()
    assert sweepable.split(field, again) == [part.strip() for part in values.split(";") if part]


@pytest.mark.parametrize(
    ("field", "values", "example"),
    [
        ("parallel.cuts", "2-3, 4", "1; 2"),
        ("parallel.cuts", "2 3, 4", "1; 2"),
        ("parallel.replicas", "2-1, 1-2", "2-1; 1-2"),
        ("parallel.recompute_layers", "0 2, 1 3", "0; 0, 2"),
    ],
)
def test_two_lists_with_a_comma_between_them_are_refused(yard: Client, field: str, values: str, example: str) -> None:
    pipeline = {"parallel__dp": "1", "parallel__pp": "4", "parallel__micro_batches": "4", "model__layers": "4"}
    asked = {**SWEEP, **pipeline, "parallel__recompute": "full", "field": field}
    said = preview(yard, {**asked, "values": values})
    words = f"Write semicolons between lists, such as {example}: commas stand within a list."
    assert error_at(said, "values") == words and "what was asked for is left out" not in said
    answer = yard.post(NEW, {**asked, "values": values})
    assert answer.status_code == 422 and words in answer.content.decode()
    assert not Study.objects.exists()


@pytest.mark.parametrize(
    ("field", "text", "several"),
    [
        ("parallel.cuts", "2-3-4", ["2-3-4"]),
        ("parallel.cuts", " 2 , 3,4 ", ["2 , 3,4"]),
        ("parallel.widths", "2-1, 1-2; 1-1", ["2-1, 1-2", "1-1"]),
        ("parallel.recompute_layers", "1, 2, 4, 8;", ["1, 2, 4, 8"]),
        ("train.lr", "1e-3, 1e-4", ["1e-3", "1e-4"]),
    ],
)
def test_one_list_may_have_commas(field: str, text: str, several: list[str]) -> None:
    assert sweepable.split(field, text) == several


LISTS_SWEPT: dict[str, Any] = {
    **SWEEP,
    "model__layers": "9",
    "parallel__dp": "1",
    "parallel__pp": "2",
    "parallel__micro_batches": "4",
    "parallel__recompute": "full",
}


def input_named(page: str, name: str) -> str:
    """The value of the only input of this name; "" if there is none."""
    found = re.findall(rf'<input[^>]* name="{name}"[^>]*>', page)
    assert len(found) <= 1
    return html.unescape(re.findall(r' value="([^"]*)"', found[0])[0]) if found else ""


@pytest.mark.parametrize(
    ("before", "text", "field", "begins"),
    [
        ("parallel.micro_batches", "1, 2, 4, 8", "parallel.recompute_layers", "0; 0, 2"),
        ("parallel.recompute_layers", " 0; 0, 2 ", "train.global_batch", "1, 2, 4, 8"),
        ("parallel.replicas", "2-1; 1-2", "parallel.recompute_layers", "0; 0, 2"),
        ("parallel.cuts", "1; 2", "parallel.replicas", "2-1; 1-2"),
    ],
)
def test_a_field_that_is_chosen_begins_in_its_notation(
    yard: Client, before: str, text: str, field: str, begins: str
) -> None:
    asked = {**LISTS_SWEPT, "begun_for": before, "field": field, "values": text}
    said = preview(yard, asked)
    assert (input_named(said, "values"), input_named(said, "begun_for")) == (begins, field)
    assert said.count('hx-swap-oob="true"') == said.count('id="error-') + 2
    assert error_at(said, "values") == "" and "Nothing would run" not in said
    checked = yard.post(NEW, {**asked, "preview": "1"}).content.decode()
    assert (input_named(checked, "values"), input_named(checked, "begun_for")) == (begins, field), "a button, no script"


@pytest.mark.parametrize(
    ("before", "text", "field"),
    [
        ("parallel.recompute_layers", "1, 2, 4, 8", "parallel.recompute_layers"),
        ("parallel.micro_batches", "1; 2", "parallel.micro_batches"),
        ("parallel.micro_batches", "1, 2", "parallel.recompute_layers"),
        ("parallel.micro_batches", "1, 2, 4, 8", "train.global_batch"),
        ("parallel.micro_batches", "1; 2", "parallel.recompute_layers"),
        ("", "1, 2, 4, 8", "parallel.recompute_layers"),
        ("parallel.recompute_layers", "0; 0, 2", "nonsense"),
    ],
)
def test_values_that_somebody_wrote_stay(yard: Client, before: str, text: str, field: str) -> None:
    asked = {**LISTS_SWEPT, "begun_for": before, "field": field, "values": text}
    said = preview(yard, asked)
    assert 'name="values"' not in said
    assert input_named(said, "begun_for") == ("" if before == field else field)
    checked = yard.post(NEW, {**asked, "preview": "1"}).content.decode()
    assert (input_named(checked, "values"), input_named(checked, "begun_for")) == (text, field)


def test_what_is_typed_after_another_field_was_chosen_stays(yard: Client) -> None:
    """Even where it is what the field before began with, of whose values some were written."""
    asked = {**LISTS_SWEPT, "field": "parallel.recompute_layers"}
    before = input_named(yard.get(NEW, {"kind": "sweep"}).content.decode(), "begun_for")
    assert before == "parallel.micro_batches"
    chosen = preview(yard, {**asked, "begun_for": before, "values": "5, 6"})
    typed = preview(yard, {**asked, "begun_for": input_named(chosen, "begun_for"), "values": "1, 2, 4, 8"})
    assert 'name="values"' not in typed and "write a semicolon behind it" in error_at(typed, "values")


def test_lists_typed_for_numbers_are_never_queued_as_other_values(yard: Client) -> None:
    asked = {**LISTS_SWEPT, "begun_for": "parallel.micro_batches", "field": "parallel.micro_batches", "values": "1; 2"}
    said = preview(yard, asked)
    assert "Nothing would run" in said and "1; 2" in said
    answer = yard.post(NEW, asked)
    assert answer.status_code == 422 and not Study.objects.exists()
    assert input_named(answer.content.decode(), "values") == "1; 2"


def test_a_study_that_is_cloned_has_its_own_field_as_that_of_its_values(yard: Client) -> None:
    field = "parallel.recompute_layers"
    assert yard.post(NEW, {**LISTS_SWEPT, "field": field, "values": "0; 0, 2"}).status_code == 302
    page = yard.get(NEW, {"clone": Study.objects.get().pk}).content.decode()
    assert (input_named(page, "begun_for"), input_named(page, "values")) == (field, "0; 0, 2")


def test_values_that_nobody_wrote_for_a_list_field_are_not_queued(yard: Client) -> None:
    asked = {**LISTS_SWEPT, "field": "parallel.recompute_layers"}
    answer = yard.post(NEW, {**asked, "values": "1, 2, 4, 8"})
    assert answer.status_code == 422 and not Study.objects.exists()
    assert "such as 0; 0, 2: 1, 2, 4, 8 is one list; if" in error_at(answer.content.decode(), "values")
    assert yard.post(NEW, {**asked, "values": "1, 2, 4, 8;"}).status_code == 302
    assert Run.objects.get().spec["parallel"]["recompute_layers"] == [1, 2, 4, 8]
    again = yard.get(NEW, {"clone": Study.objects.get().pk}).context["form"]["values"].value()
    assert sweepable.split("parallel.recompute_layers", again) == ["1, 2, 4, 8"]


def test_values_that_are_no_lists_keep_their_commas() -> None:
    assert sweepable.split("train.lr", "0.1, 0.2,") == ["0.1", "0.2"]
    assert sweepable.joined("train.lr", ["0.1", "0.2"]) == "0.1, 0.2"


def test_a_sweep_may_stand_on_replicas_of_each_stage_and_on_an_own_schedule(yard: Client) -> None:
    asked = {**SWEEP, "parallel__dp": "1", "parallel__pp": "2", "field": "train.lr", "values": "0.1, 0.2"}
    own = {"parallel__schedule": "custom", "parallel__program": EXAMPLE, "parallel__micro_batches": "4"}
    assert yard.post(NEW, {**asked, **own}).status_code == 302
    assert {run.spec["parallel"]["program"] for run in Run.objects.all()} == {EXAMPLE}
    study = Study.objects.get()
    assert yard.get(NEW, {"clone": study.pk}).context["form"]["parallel__program"].value() == EXAMPLE
    split = {"parallel__replicas": "2, 1", "parallel__micro_batches": "2", "parallel__widths": "1, 2"}
    assert yard.post(NEW, {**asked, **split}).status_code == 302
    made = Study.objects.exclude(pk=study.pk).get()
    assert {tuple(run.spec["parallel"]["replicas"]) for run in made.runs.all()} == {(2, 1)}


def test_a_page_of_such_runs_says_what_their_names_mean() -> None:
    plan = variants.matrix(
        BASE,
        strategies=["1f1b"],
        splits=["2-1", "3-1", "1x2-1x1"],
        schedules=[["", EXAMPLE]],
        recompute=["none"],
        layers=["0", "1"],
        devices=4,
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
    assert all("medians of 1 pair" in answer.detail for answer in found)


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
    assert all("medians of 1 pair" in answer.detail for answer in found)


def test_streams_of_other_stages_update_otherwise() -> None:
    plan = variants.matrix(
        BASE, strategies=["1f1b", "1f1b-stash"], splits=["2-1"], recompute=["none", "full"], devices=3
    )
    found = {variant.name: variant.spec for variant in plan.variants}
    stash, flush = "PP-1F1B async, stashed", "PP-1F1B"
    assert same_updates(found[f"{flush} 3"], found[f"{flush} 2-1"])
    assert same_updates(found[f"{stash} 2-1"], found[f"{stash} 2-1 + AR"])
    assert not same_updates(found[f"{stash} 3"], found[f"{stash} 2-1"])


def test_every_field_of_the_form_is_on_its_page(yard: Client) -> None:
    page = yard.get(NEW).content.decode()
    assert [page.count(f'id="field-{name}"') for name in (*MatrixForm.axes, "schedule_file")] == [1] * 9
    assert 'enctype="multipart/form-data"' in page


def test_a_study_by_name_of_what_cannot_be_read_is_refused(alice: Any) -> None:
    with pytest.raises(ValueError, match="no split by stage"):
        services.create_matrix(owner=alice, name="s", base=BASE, strategies=["1f1b"], splits=["two"])
    assert not Study.objects.exists()
