"""Messages of the engine in the words of the New run form: the engine, the API and the command line spell a field as a
spec does (`pipeline=3`), a page by its label (`Pipeline stages = 3`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from dashboard.runs.choice_labels import CHOICE_LABELS
from dashboard.runs.spec_fields import ENTRIES

_AXES = {
    "data": "parallel.dp",
    "tensor": "parallel.tp",
    "pipeline": "parallel.pp",
    "micro-batches": "parallel.micro_batches",
}
"""Of what rules spell otherwise than the spec does."""
_PATHS = {path.rpartition(".")[2]: path for path in ENTRIES} | _AXES | {path: path for path in ENTRIES}
_SETTING = re.compile(r"(?<![\w.])([a-z][\w.-]*)=([\w.-]*\w)?")
_PATH = re.compile(r"(?<![\w.])((?:model|parallel|train|trace)\.[a-z_0-9]+)\b")
_SWITCHES = {"true": "on", "false": "off"}
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"


def label(path: str) -> str:
    """What the form calls a leaf of the spec, in few words; its own name where no form asks for it."""
    return ENTRIES[path].label.partition(":")[0] if path in ENTRIES else path


def in_form_words(message: str, own: Mapping[str, str] = MappingProxyType({})) -> str:
    """`message` with each field and value that it spells as a spec does said as the form says it.

    `own` = {dotted field: label} of a page that calls some fields otherwise.
    """
    settings = _SETTING.sub(lambda found: _setting(found, own), message)
    return _PATH.sub(lambda found: own.get(found[1]) or label(found[1]), settings)


def first_error(errors: Mapping[str, str]) -> str:
    """The first of {dotted field: message}, by the label of its field where the message does not name it."""
    path, message = next(iter(errors.items()))
    said = in_form_words(message)
    return said if path not in ENTRIES or label(path).lower() in said.lower() else f"{label(path)}: {said}"


def _setting(found: re.Match[str], own: Mapping[str, str]) -> str:
    name, value = found[1], found[2] or ""
    path = _PATHS.get(name)
    if path is None:
        return found[0]
    words = _SWITCHES.get(value) or CHOICE_LABELS.get(value, value).partition(":")[0]
    called = own.get(path) or label(path)
    return f"{called}{_EQUALS}{words}" if value else called
