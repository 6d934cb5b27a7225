"""A spec as JSON fills New run: from a file, as pasted text, or in the address; what is wrong is said at its field."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.runs.form import spec_fields
from dashboard.runs.form.spec_loading import MAX_SPEC, form_values, parsed
from dashboard.runs.models import Run
from parallel_core.spec import RunSpec
from tests.dashboard import factory

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker

LOAD = "/runs/new/spec"
FULL = RunSpec.model_validate(
    {
        "model": {"layers": 3, "hidden": 32, "heads": 2, "seq": 16, "tied": False},
        "parallel": {"pp": 2, "micro_batches": 4, "recompute": "full", "recompute_layers": [0, 2]},
        "train": {"lr": 0.00325, "global_batch": 8, "clip_norm": 0.5, "steps": 12},
        "trace": {"memory_cap": 64 << 20, "profile_steps": [4]},
        "inject": [{"kind": "straggler", "rank": 1, "factor": 3.0}],
    }
).model_dump(mode="json")


def errors_of(answer: Any) -> dict[str, str]:
    return {name: " ".join(said) for name, said in answer.context["form"].errors.items()}


def test_what_a_run_exports_fills_the_form_of_the_same_run(yard: Client, alice: Any) -> None:
    run = factory.queued(alice, FULL["parallel"], train=FULL["train"], inject=FULL["inject"])
    exported = yard.get(f"/runs/{run.pk}/data/spec.json").content
    answer = yard.post(LOAD, {"spec_file": SimpleUploadedFile("spec.json", exported)})
    assert answer.status_code == 200 and not errors_of(answer)
    form = answer.context["form"]
    shown = {name: form[name].value() for name in form.fields}
    typed = {name: value for name, value in shown.items() if value is not None and value is not False}
    assert yard.post("/runs/new/", typed).status_code == 302
    assert Run.objects.latest("pk").spec == run.spec


@pytest.mark.parametrize("spec", [FULL, RunSpec().model_dump(mode="json"), {"model": {"kind": "vgg16"}}, {}])
def test_a_valid_spec_has_the_form_values_of_that_spec(spec: dict[str, Any]) -> None:
    whole = RunSpec.model_validate(spec).model_dump(mode="json")
    assert form_values(spec) == spec_fields.from_spec(whole)


def test_what_is_wrong_is_said_at_its_field_and_the_rest_stays(yard: Client) -> None:
    spec = {
        "model": {"kind": "vgg16", "width": "wide"},
        "parallel": {"dp": 2, "recompute": "full", "recompute_layers": {"a": 1}, "cuts": "3, 6"},
        "train": {"lr": "fast", "global_batch": 8, "learning_rate": 1, "deterministic": "yes"},
        "trace": {"memory_cap": "much", "reference": []},
        "inject": [{"kind": "straggler", "rank": 1}, {"kind": "gremlin"}, 7],
    }
    answer = yard.post(LOAD, {"spec": json.dumps(spec)})
    found, form = errors_of(answer), answer.context["form"]
    wrong = {"train__lr", "model__width", "parallel__recompute_layers", "trace__memory_cap", "trace__reference"}
    assert wrong <= set(found)
    assert "train.learning_rate" in found["__all__"], "a field that there is not is named, not dropped"
    kept = {name: form[name].value() for name in form.fields}
    assert kept["train__lr"] == "fast" and kept["model__width"] == "wide" and kept["parallel__dp"] == "2"
    assert kept["parallel__recompute_layers"] == '{"a": 1}' and kept["parallel__cuts"] == "3, 6"
    assert kept["trace__memory_cap"] == "much" and kept["train__deterministic"] is True
    assert kept["train__global_batch"] == "8" and kept["train__corpus"] == "digits", "the model's own corpus"
    assert kept["inject__straggler"] is True and kept["inject__straggler__rank"] == "1"
    assert 'href="#f-train__lr"' in answer.content.decode()
    assert "train.learning_rate: There is no such field; use “Learning rate”." in answer.context["panel"].errors
    assert not Run.objects.exists()


@pytest.mark.parametrize("section", ["x", None, 3, ["layers"]])
def test_a_section_that_is_none_is_said_and_left_out(yard: Client, section: Any) -> None:
    answer = yard.post(LOAD, {"spec": json.dumps({"model": section, "inject": section, "train": {"lr": 0.5}})})
    assert answer.status_code == 200
    assert "model" in errors_of(answer)["__all__"]
    assert answer.context["form"]["train__lr"].value() == "0.5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Choose a file, or paste a spec."),
        ("{'model': 1}", "This is no JSON: Expecting property name enclosed in double quotes at line 1, column 2."),
        ("[1]", "A spec is an object"),
        ('{"train": {"lr": 1, "lr": 2}}', "This is no spec: 'lr' stands twice in one object."),
        ('{"train": {"lr": ' + "1" * 5000 + "}}", "a number is too long"),
        ("[" * 100_000, "nested too deeply"),
        ('{"train": {"lr": "\\ud800"}}', "half of a surrogate pair"),
        ("{" + " " * MAX_SPEC + "}", "at most 1\xa0048\xa0576 characters"),
    ],
)
def test_what_is_no_spec_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parsed(text)


def test_a_file_that_is_no_text_is_refused_at_its_field(yard: Client) -> None:
    answer = yard.post(LOAD, {"spec_file": SimpleUploadedFile("spec.json", b"\xff{}")})
    assert answer.status_code == 422
    assert answer.context["given"].errors["spec_file"] == ["This is no spec: byte 0 is not UTF-8 text."]
    assert "The spec could not be read." in answer.content.decode()


def test_an_invalid_spec_in_the_address_is_not_replaced_by_a_preset(yard: Client) -> None:
    spec = {"model": {"layers": 3}, "train": {"lr": -1}}
    answer = yard.get(f"/runs/new/?spec={quote(json.dumps(spec))}")
    assert answer.context["form"]["model__layers"].value() == "3"
    assert "train__lr" in errors_of(answer)
    page = answer.content.decode()
    assert "This spec cannot run as it is." in page and "Put right" in page
    assert "Tiny GPT, 1 device:" not in page, "no preset is said to have filled the form"
    unreadable = yard.get("/runs/new/?spec={")
    assert unreadable.status_code == 422
    assert "The spec could not be read." in unreadable.content.decode()


def test_a_viewer_loads_nothing(reader: Client) -> None:
    assert reader.post(LOAD, {"spec": "{}"}).status_code == 403
