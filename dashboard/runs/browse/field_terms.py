"""Terms `field=value` in the search for runs: `train.lr=0.003 gpt` finds runs of that rate with gpt in their words.

A field is a leaf of the spec by its dotted name (`parallel_core.known_fields`), a value is written as in a form: lists
with commas (`parallel.cuts=3,6`), `none` where there is no value, and sizes in the unit of the spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from django.db.models import Q
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dashboard.runs.form import break_it, spec_fields
from parallel_core.field_names import likely
from parallel_core.rules import describe
from parallel_core.spec import RunSpec

_TERM = re.compile(r"(?:^|(?<=\s))([a-z]+\.[a-z]\w*)=(\S*)(?=\s|$)")
"""A name with a dot, so that a run called `lr=0.003` by its sweep is found by its name."""
UNSEARCHED = ("parallel.program",)
"""Leaves that are neither searched nor exported in lists: texts of up to half a MiB."""


@dataclass(frozen=True)
class Search:
    """What a search text asks for: the words without its terms, and the conditions of these; `wrong` has a sentence on
    each term that means nothing."""

    words: str
    conditions: list[Q] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@cache
def leaves() -> Mapping[str, FieldInfo]:
    """The leaves that a term can name and a list exports, by dotted name, in the order of the spec."""
    every = spec_fields.leaves()
    return {path: info for path, info in every.items() if not break_it.is_part(path) and path not in UNSEARCHED}


def parse(text: str) -> Search:
    """Reads a search text; its terms are those parts that are written `section.field=value`."""
    found = Search(" ".join(_TERM.sub(" ", text).split()) if _TERM.search(text) else text)
    for path, value in _TERM.findall(text):
        try:
            found.conditions.append(_condition(path, value))
        except ValueError as error:
            found.wrong.append(str(error))
    return found


def _condition(path: str, text: str) -> Q:
    """Raises ValueError with a sentence if there is no such field, or no run can have that value."""
    info = leaves().get(path)
    if info is None:
        raise ValueError(_unknown(path))
    value = _value(path, info, text)
    section, leaf = path.split(".", 1)
    same = Q(**{f"spec__{section}__{leaf}": value})
    usual = info.get_default(call_default_factory=True)
    # A spec that was stored before there was the field trained as its default does.
    lacking = ~Q(**{f"spec__{section}__has_key": leaf})
    return same | lacking if _adapter(path).dump_python(usual, mode="json") == value else same


@cache
def _adapter(path: str) -> TypeAdapter[Any]:
    info = leaves()[path]
    kind: Any = info.annotation
    for rule in info.metadata:
        kind = Annotated[kind, rule]
    return TypeAdapter(kind)


def _value(path: str, info: FieldInfo, text: str) -> Any:
    """The value as a stored spec has it."""
    lists = path in spec_fields.LISTS
    given: Any = text
    if text.lower() == "none" and spec_fields.is_optional(info):
        given = None
    elif lists:
        given = [] if text.lower() in ("", "none") else text.replace(",", " ").split()
    try:
        return _adapter(path).dump_python(_adapter(path).validate_python(given), mode="json")
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        said = describe(item, ())[1]
        raise ValueError(f"{path}={text} was left out. {said}") from error


def _unknown(path: str) -> str:
    meant = likely(RunSpec, tuple(path.split(".", 1)))
    near = f"; {meant} is one" if meant in leaves() else "; the tab Spec of a run names them"
    return f"{path} is no field of a spec that can be searched, and was left out{near}."
