"""A sweep over a field that holds lists: one value is a whole list, and none is read as another."""

from __future__ import annotations

import html
import re
from typing import Annotated, Any, Literal

import pytest
from django.test import Client
from pydantic import Field

from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.studies.new import sweepable
from parallel_core.schedule.custom import EXAMPLE
from parallel_core.spec import TrainSpec
from tests.dashboard.new_study import NEW, SWEEP, preview
from tests.dashboard.plain import error_at


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


class Later(TrainSpec):
    """With fields that a later version might have."""

    milestones: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=8)] | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    named: Literal["tuple", "list"] | None = None


def test_a_new_field_that_holds_a_list_can_be_swept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sweepable._SECTIONS, "train", Later)
    assert (
        sweepable.parse("train.milestones", "1, 2") == ["1", "2"]
        and sweepable.parse("train.milestones", "none") is None
    )
    assert (
        sweepable.parse("train.betas", "0.9 0.95") == ["0.9", "0.95"]
        and sweepable.parse("train.named", "list") == "list"
    )
    for field in ("train.milestones", "train.betas"):
        begun = sweepable.split(field, sweepable.begin(field))
        assert begun == ["1", "1, 2"] and sweepable.joined(field, begun) == "1; 1, 2"
    assert sweepable.separator("train.named") == sweepable.separator("of no section") == ","


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
