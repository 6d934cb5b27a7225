"""`python -m parallel_core spec`: every field of a RunSpec with its default, its bounds and what it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from parallel_core.analysis.quantities import bound_text
from parallel_core.cli.common import CommandError, Subparsers, add_command
from parallel_core.faults import KINDS as FAULTS
from parallel_core.field_names import sections
from parallel_core.outline import KINDS
from parallel_core.spec import RunSpec

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
"""Keyword of JSON Schema -> how it is said."""
_TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}


class _Line(NamedTuple):
    name: str
    default: str
    values: str
    about: str


def add(commands: Subparsers) -> None:
    """Adds the command to the parser of the engine."""
    command = add_command(
        commands, "spec", "list what a spec may say: every field, its default, bounds and meaning", "train", "--json"
    )
    command.add_argument("name", nargs="?", default="", help="only fields whose dotted name begins so, e.g. train")
    command.add_argument("--json", action="store_true", help="the JSON Schema of a spec instead")
    command.set_defaults(run=_fields)


def _fields(options: argparse.Namespace) -> int:
    schema = RunSpec.model_json_schema()
    if options.json:
        print(json.dumps(schema, indent=1))
        return 0
    lines = [line for line in (*_of_sections(schema), *_of_faults(schema)) if line.name.startswith(options.name)]
    if not lines:
        raise CommandError(f"no field begins with {options.name}; without a name all are listed")
    wide, default = (max(len(line[i]) for line in lines) for i in (0, 1))
    for line in lines:
        print(f"{line.name:<{wide}}  {line.default:<{default}}  {line.values}. {line.about}")
    return 0


def _of_sections(schema: dict[str, Any]) -> Iterator[_Line]:
    for section, kind in sections(RunSpec).items():
        if kind is RunSpec:
            continue
        for name, about in schema["$defs"][kind.__name__]["properties"].items():
            kinds = [word for word, outline in KINDS.items() if section == "model" and name in outline.fields]
            of = f" (Of {', '.join(kinds)}.)" if kinds else ""
            default, said = json.dumps(about["default"]), _plain(about.get("description", ""))
            yield _Line(f"{section}.{name}", default, _values(about, schema), f"{said}{of}")


def _of_faults(schema: dict[str, Any]) -> Iterator[_Line]:
    """The fields of `inject`, a list of objects: one line for each field of each kind."""
    for word, fault in FAULTS.items():
        about = schema["$defs"][fault.__name__]["properties"]
        yield _Line("inject[].kind", json.dumps(word), "text", f"{fault.title}: {fault.blurb}.")
        for name in fault.fields():
            default, values = json.dumps(about[name]["default"]), _values(about[name], schema)
            yield _Line(f"inject[].{name}", default, values, f"Of {word}: {fault.hints.get(name, name)}.")


def _values(about: dict[str, Any], schema: dict[str, Any]) -> str:
    """Returns what a value of this schema may be, in words."""
    if "$ref" in about:
        return _values(schema["$defs"][about["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in about:
        return " or ".join(sorted((_values(one, schema) for one in about["anyOf"]), key="null".__ne__))
    if "enum" in about:
        return " | ".join(about["enum"])
    if about["type"] == "array":
        most = f", at most {about['maxItems']}" if "maxItems" in about else ""
        return f"list{most}, of {_values(about['items'], schema)}"
    length = [f"at most {about['maxLength']} characters"] if "maxLength" in about else []
    return ", ".join([_TYPES[about["type"]], *_bounds(about), *length])


def _bounds(about: dict[str, Any]) -> list[str]:
    if {"minimum", "maximum"} <= about.keys():
        return [f"{_end(about['minimum'])} to {_end(about['maximum'])}"]
    return [f"{words} {_end(about[word])}" for word, words in _BOUNDS.items() if word in about]


def _end(bound: float) -> str:
    """A bound as it is typed: its thousands are not separated."""
    return bound_text(bound).replace("\N{NO-BREAK SPACE}", "")


def _plain(text: str) -> str:
    """One line, without the marks of code; a spec spells None as JSON does."""
    return " ".join(text.replace("`", "").replace("None", "null").split())
