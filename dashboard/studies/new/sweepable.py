"""Which fields of a RunSpec a study can sweep, and which values can be typed for one of them."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from dashboard.runs.form import relevance, spec_fields
from dashboard.runs.form.form_words import VALUES, short_label
from parallel_core.spec import ModelSpec, ParallelSpec, RunSpec, TraceSpec, TrainSpec

_SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSpec,
    "parallel": ParallelSpec,
    "train": TrainSpec,
    "trace": TraceSpec,
}
_NOT_ONE_VALUE = {"kind", "program", "profile_steps", "profile_ranks"}
_BY_STAGE = {"parallel.cuts", "parallel.replicas", "parallel.widths"}
"""Lists that are written as `2-1`, `2, 1` or `2 1`; other lists without `-`, as `0-2` could be a range."""
_BEGIN = {
    **dict.fromkeys(_BY_STAGE, "2-1; 1-2"),
    "parallel.cuts": "1; 2",
    "parallel.recompute_layers": "0; 0, 2",
}
_BEGIN_LISTS, _BEGIN_NUMBERS = "1; 1, 2", "1, 2, 4, 8"
_HELD_EQUAL = {"corpus", "steps", "weights"}
"""Equal in the whole study."""
AXES = (("field", "values"), ("second_field", "second_values"))
"""The fields of a sweep, the second of which there may be, each with its values: names in forms and settings."""
_UNITS = {"trace.memory_cap": "MiB"}
"""Units in which values are typed where the short label does not say it, as in New run."""


def fields() -> dict[str, str]:
    """`{dotted field: label in the New run form}` of every field of a RunSpec of which several values can be written on
    one line."""
    paths = [
        f"{section}.{leaf}"
        for section, model in _SECTIONS.items()
        for leaf in model.model_fields
        if leaf not in _NOT_ONE_VALUE | _HELD_EQUAL
    ]
    return {path: f"{short_label(path)}, {_UNITS[path]}" if path in _UNITS else short_label(path) for path in paths}


def separator(field: str) -> str:
    """What stands between two values of a field: a list has commas of its own."""
    return ";" if _is_list(field) else ","


def begin(field: str) -> str:
    """The text that a form begins with, in the notation of the field."""
    return _BEGIN.get(field, _BEGIN_LISTS if _is_list(field) else _BEGIN_NUMBERS)


def begun(before: str, field: str, text: str) -> str:
    """The text of a form in which `field` was chosen instead of `before`: what begins there if `text` is what began for
    `before` (nothing for ''), else `text`, which somebody wrote; `text`, too, where one of them is no field."""
    known = fields().keys()
    chosen = field != before and field in known and before in {"", *known}
    return begin(field) if chosen and text.strip() == (begin(before) if before else "") else text


def split(field: str, text: str) -> list[str]:
    """The values in a text. Raises ValueError, with words for the form, where lists have no semicolons between them."""
    if _is_list(field) and ";" not in text:
        if "," in text and any(re.search(r"\S[\s-]+\S", part) for part in text.split(",")):
            raise ValueError(f"Write semicolons between lists, such as {begin(field)}: commas stand within a list.")
        if text.strip() == _BEGIN_NUMBERS:  # other fields begin with it: perhaps nobody wrote it
            one = f"{text.strip()} is one list; if it is meant, write a semicolon behind it."
            raise ValueError(f"Write semicolons between lists, such as {begin(field)}: {one}")
    return [part.strip() for part in text.split(separator(field)) if part.strip()]


def joined(field: str, values: Iterable[Any]) -> str:
    """The inverse of `split`."""
    several = list(map(str, values))
    alone = _is_list(field) and len(several) == 1 and "," in several[0]
    return f"{several[0]};" if alone else f"{separator(field)} ".join(several)


def parse(field: str, text: str) -> Any:
    """A value as typed in a form, for pydantic: 'none' becomes None if the field may be None, `2-1` and `2, 1` a list
    if the field has one, and sizes are in MiB. Of `2-1, 1-2`, which is no list, pydantic is left to refuse the
    parts."""
    text = text.strip()
    annotation = _annotation(field)
    nullable = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    if text.lower() == "none" and nullable:
        return None
    if not _is_list(field):
        return spec_fields.value_of(field, text)
    by_stage = field in _BY_STAGE and "-" in text
    return [part.strip() for part in text.split("-")] if by_stage else text.replace(",", " ").split()


def named(field: str, text: str) -> str:
    """What a run with this value is called: "Memory cap = 64 MiB"."""
    unit = _UNITS.get(field, "") if text.strip().lower() != "none" else ""
    return f"{short_label(field)} = {text} {unit}".rstrip()


def unread(field: str, spec: RunSpec) -> str:
    """Why a run with this valid spec does not read the field, as a sentence; '' if it does."""
    sections = spec.model_dump(mode="json")

    def value(path: str) -> Any:
        section, leaf = path.split(".", 1)
        return sections[section][leaf]

    needed = relevance.condition(field)
    if needed is None or relevance.is_read(field, value):
        return ""
    found = VALUES.get(str(value(needed.leaf)), str(value(needed.leaf)))
    return f"“{short_label(field)}” changes nothing while “{short_label(needed.leaf)}” is {found}."


def _annotation(field: str) -> Any:
    section, leaf = field.split(".", 1)
    return _SECTIONS[section].model_fields[leaf].annotation


def _is_list(field: str) -> bool:
    """Whether a value of the field is a tuple of values; False for what is no field."""
    return field in fields() and _has_tuple(_annotation(field))


def _has_tuple(annotation: Any) -> bool:
    """Whether the annotation is a tuple, or a union with one, such as `tuple[int, ...] | None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _has_tuple(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return any(map(_has_tuple, typing.get_args(annotation)))
    return typing.get_origin(annotation) is tuple
