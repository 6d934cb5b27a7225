"""A spec for reading: its leaves by section, with the form's labels, without leaves that do not apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dashboard.runs.form import relevance
from dashboard.runs.form.form_words import value_words
from dashboard.runs.form.spec_fields import ENTRIES
from dashboard.runs.texts import corpus_names
from parallel_core.faults import stored
from parallel_core.spec import RunSpec

SECTIONS = {"parallel": "Parallelism", "train": "Training", "trace": "Tracing"}
"""Titles of sections that differ from their name."""


class Line(NamedTuple):
    """`words` = the form's label, `leaf` = the path in the spec."""

    words: str
    leaf: str
    value: str


class Group(NamedTuple):
    title: str
    lines: list[Line]


def groups(spec: Mapping[str, Any]) -> list[Group]:
    """A card for each section of a stored spec, and one for its faults if it is broken on purpose."""
    plain = {section: fields for section, fields in spec.items() if section != "inject"}
    flat = {f"{section}.{leaf}": value for section, fields in plain.items() for leaf, value in fields.items()}

    usual = RunSpec().model_dump(mode="json")  # what a spec of before has no field for was at its default
    known = {f"{section}.{leaf}": value for section in plain for leaf, value in usual[section].items()} | flat

    def lines(section: str) -> list[Line]:
        paths = [path for path in flat if path.startswith(f"{section}.")]
        read = (path for path in paths if relevance.is_read(path, lambda leaf: str(known.get(leaf))))
        return [_line(path, flat[path]) for path in read]

    out = [Group(SECTIONS.get(section, section.capitalize()), lines(section)) for section in plain]
    faults = [Line(fault.title, "", fault.sentence) for fault in stored(spec.get("inject", ()))]
    return [*out, Group("Broken on purpose", faults)] if faults else out


def _line(path: str, value: Any) -> Line:
    entry, leaf = ENTRIES.get(path), path.split(".", 1)[1]
    words = entry.label if entry else _words(leaf)
    said = corpus_names.names_of([value])[value] if path == corpus_names.LEAF else value_words(path, value)
    return Line(words, path, said or "–")


def _words(leaf: str) -> str:
    return leaf.replace("_", " ").capitalize()
