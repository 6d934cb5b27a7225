"""`spec`: what a spec may say, from the models of its fields."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from parallel_core.cli import main
from parallel_core.faults import KINDS
from parallel_core.field_names import sections
from parallel_core.spec import RunSpec

FIELDS = [f"{section}.{name}" for section, kind in sections(RunSpec).items() if section for name in kind.model_fields]


def listed(capsys: pytest.CaptureFixture[str], *line: str) -> dict[str, str]:
    """What `spec` says of each field."""
    assert main(["spec", *line]) == 0
    return {row.split()[0]: row for row in capsys.readouterr().out.splitlines()}


def test_every_field_has_a_line_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    said = listed(capsys)
    assert list(said)[: len(FIELDS)] == FIELDS
    assert {name.removeprefix("inject[].") for name in list(said)[len(FIELDS) :]} == {"kind"} | {
        name for fault in KINDS.values() for name in fault.fields()
    }
    for name, row in said.items():
        assert re.search(r"\. .*[A-Za-z]{2}.*\.?\)?$", row.removeprefix(name)), row


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train.lr", "number, above 0, at most 100. Learning rate; its peak"),
        ("train.loss_scale", "number, 1 to 2^100."),
        ("train.beta1", "number, at least 0, below 1."),
        ("parallel.zero", "whole number, 0 to 3."),
        ("parallel.cuts", "null  null or list, at most 1026, of whole number, at least 1."),
        ("train.precision", '"fp32"  fp32 | fp64 | bf16 | fp16.'),
        ("model.image", "(Of "),
    ],
)
def test_defaults_and_bounds_are_those_of_the_models(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in listed(capsys, name)[name]


def test_a_bound_that_is_said_is_where_values_end(capsys: pytest.CaptureFixture[str]) -> None:
    row = listed(capsys, "train.keep")["train.keep"]
    most = int(re.findall(r" to (\d+)", row)[0])
    assert RunSpec.model_validate({"train": {"keep": most}}).train.keep == most
    with pytest.raises(ValidationError):
        RunSpec.model_validate({"train": {"keep": most + 1}})


def test_the_schema_describes_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "--json"]) == 0
    schema = json.loads(capsys.readouterr().out)
    for section, kind in sections(RunSpec).items():
        fields = schema["$defs"][kind.__name__]["properties"] if section else schema["properties"]
        assert set(fields) == set(kind.model_fields)
        without = [name for name, field in fields.items() if not field.get("description")]
        assert not without, f"say below {', '.join(without)} of {kind.__name__} what it is, as with the others"


def test_a_section_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "trian"]) == 2
    assert "no field begins with trian" in capsys.readouterr().err
