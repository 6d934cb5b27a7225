"""The form for splits that a person writes: what it takes, what it says before the click, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.studies.new import feasible
from dashboard.studies.new.matrix_form import MatrixForm
from dashboard.studies.new.written import Again
from parallel_core.plan import memory
from parallel_core.plan.backward import walked
from parallel_core.schedule import compute_only
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.table import to_csv
from parallel_core.spec import RunSpec
from tests.dashboard.new_study import MATRIX, NEW, preview
from tests.dashboard.plain import error_at
from tests.dashboard.test_written_splits import WIDE

ASKED: dict[str, Any] = {
    **MATRIX,
    "model__layers": "4",
    "strategies": ["1f1b"],
    "recompute": ["none"],
    "micro_batches": "4",
    "devices": "4",
}


def test_the_examples_of_the_help_run_at_the_defaults_on_the_devices_that_it_names(yard: Client) -> None:
    form = yard.get(NEW).context["form"]
    examples = re.findall(r"(\d[x\d]*(?:-\d[x\d]*)+) \((\d) devices\)", form["splits"].help_text)
    assert [split for split, _ in examples] == ["2-1", "2x1-1x2"]
    values = {name: form[name].value() for name in form.fields if form[name].value() not in (None, False)}
    for split, devices in examples:
        filled = MatrixForm({**values, "splits": split, "devices": devices, "strategies": ["1f1b"]})
        assert filled.is_valid(), filled.errors
        plan = filled.planned
        assert not plan.skipped and any(split.replace("x1", "")[:3] in one.name for one in plan.variants)


def test_a_long_text_of_layers_is_read_in_one_pass_and_a_longer_one_is_refused(yard: Client) -> None:
    """With two gaps around a word that may be absent, such a text takes minutes: pytest's limit ends the test."""
    for text in ("full" + " " * 500_000 + "x", "layers" + " " * 500_000 + "x"):
        with pytest.raises(ValueError, match="names no layers"):
            Again.read(text)
    page = yard.post(NEW, {**ASKED, "layers": "0; " * 6000}).content.decode()
    assert error_at(page, "layers") == "Write at most 16\xa0384 characters; these are 17\xa0999."
    page = yard.post(NEW, {**ASKED, "splits": "2-1, " * 4000}).content.decode()
    assert error_at(page, "splits") == "Write at most 16\xa0384 characters; these are 19\xa0999."


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
    specs = [row["variant"].spec for row in yard.post(NEW, {**asked, "preview": "1"}).context["preview"]["rows"]]
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
        ("splits", "2-0", "Each number of “2-0” must be from 1 to 16\xa0384."),
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


def test_every_field_of_the_form_is_on_its_page(yard: Client) -> None:
    page = yard.get(NEW).content.decode()
    assert [page.count(f'id="field-{name}"') for name in (*MatrixForm.axis_fields, "schedule_file")] == [1] * 9
    assert 'enctype="multipart/form-data"' in page
