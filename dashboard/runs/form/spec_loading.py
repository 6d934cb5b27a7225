"""A spec as JSON (an export of a run, or one written by hand) read into the New run form.

What is wrong in it is said at its field, and what is right stays: a spec with one mistake is mended in the form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from pydantic import TypeAdapter, ValidationError

from dashboard.fields import Form
from dashboard.runs.form import break_it, spec_fields
from dashboard.runs.form.entry import html_name
from dashboard.runs.form.forms import uploaded_text
from dashboard.runs.services import Invalid
from parallel_core import json_text
from parallel_core.analysis.quantities import count_text
from parallel_core.faults import KINDS
from parallel_core.spec import RunSpec

MAX_SPEC = 1024 * 1024
"""Bytes of a spec: one with an own schedule has at most half of it."""
NOTHING = "Choose a file, or paste a spec."


class SpecForm(Form):
    """A file or text with a spec. Valid if it is JSON with an object in it: the rest is said at the fields of the run.

    `cleaned_data["spec"]` is that object.
    """

    spec_file = forms.FileField(
        required=False,
        allow_empty_file=True,
        label="File with a spec as JSON",
        help_text="as the page of a run exports it",
        widget=forms.FileInput(attrs={"accept": "application/json,.json"}),
    )
    spec = forms.CharField(
        required=False,
        label="or its text",
        help_text="at most 1 MiB",
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"auto_id": "f-%s", "use_required_attribute": False, **kwargs})
        for name, made in self.fields.items():
            made.widget.attrs["aria-describedby"] = f"help-{name} error-{name}"

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        upload, field = cleaned.get("spec_file"), "spec_file" if cleaned.get("spec_file") else "spec"
        try:
            text = uploaded_text(upload, field, "A spec", MAX_SPEC) if upload else cleaned.get("spec", "")
            cleaned["spec"] = parsed(text)
        except Invalid as error:
            self.add_error(field, error.field_errors[field])
        except ValueError as error:
            self.add_error(field, str(error))
        return cleaned


def parsed(text: str) -> dict[str, Any]:
    """The object in a JSON text. Raises ValueError with a sentence for the form."""
    if not text.strip():
        raise ValueError(NOTHING)
    if len(text) > MAX_SPEC:
        raise ValueError(
            f"A spec has at most {count_text(MAX_SPEC)} characters; this text has {count_text(len(text))}."
        )
    try:
        found = json_text.read(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"This is no JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from error
    except json_text.NamedTwice as error:
        raise ValueError(f"This is no spec: {error}.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise ValueError("This is no spec: a number is too long, or it is nested too deeply.") from error
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("This is no spec: half of a surrogate pair is no character.") from error
    if not isinstance(found, dict):
        raise ValueError('A spec is an object such as {"model": {}, "train": {}}; this is another value.')
    return found


def form_values(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Form values for a spec that may be invalid: what is no value of its field stands there as it was written, and
    what the form cannot show is left out."""
    try:
        return spec_fields.from_spec(RunSpec.stored(spec).model_dump(mode="json"))
    except ValidationError:
        values = spec_fields.from_spec({**_usual(spec), break_it.SECTION: _faults(spec)})
    for path, info in spec_fields.leaves().items():
        section, leaf = path.split(".", 1)
        given = spec.get(section)
        if path in spec_fields.ENTRIES and isinstance(given, Mapping) and leaf in given:
            shown = _switch(given[leaf]) if info.annotation is bool else _text(path, given[leaf])
            values[html_name(path)] = values[html_name(path)] if shown is None else shown
    return values


def _usual(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a model of that kind with nothing else said, for fields that the spec lacks."""
    model = spec.get("model")
    kind = model.get("kind") if isinstance(model, Mapping) else None
    try:
        return RunSpec.model_validate({"model": {"kind": kind}} if kind else {}).model_dump(mode="json")
    except ValidationError:
        return RunSpec().model_dump(mode="json")


def _faults(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = spec.get(break_it.SECTION)
    listed = given if isinstance(given, list) else []
    return [fault for fault in listed if isinstance(fault, Mapping) and str(fault.get("kind")) in KINDS]


def _switch(value: Any) -> bool | None:
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return None


def _text(path: str, value: Any) -> str:
    """The value as its field has it if it is one, else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value) if isinstance(value, Mapping) else str(spec_fields.text_of(path, value))
    except (TypeError, ValueError, OverflowError):
        return json.dumps(value)
