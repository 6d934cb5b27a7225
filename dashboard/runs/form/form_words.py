"""Translates the engine's messages into the words of the New run form: the spec's names are for API, CLI and JSON."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dashboard.runs.form import break_it
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from dashboard.runs.form.spec_fields import ENTRIES, MIB, leaf_of, leaves, mib_text, text_of
from parallel_core.analysis.quantities import count_text, plural_text
from parallel_core.faults import KINDS
from parallel_core.limits import MAX_BYTES
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import CAP_NEEDED

SPOKEN = {"micro-batches": "parallel.micro_batches"}
"""Names in the engine's messages that differ from the spec's field names -> path."""
SWITCHED = {"true": "on", "false": "off"}
COUNTED = {
    "train.eval_every": ("step", "never"),
    "train.checkpoint_every": ("step", "only when stopped or at its time limit"),
    "train.max_minutes": ("minute", "none"),
    "trace.trace_every": ("step", "one step only"),
    "trace.fingerprint_every": ("step", "never"),
}
"""Numbers of which 0 has a meaning of its own: path -> unit, and what 0 says."""
NAMES = frozenset({"train.seed"})
"""Numbers that count nothing."""


def short_label(path: str) -> str:
    """A field's label without its explanation: "Early gradients"; that of its list for an entry of one; '' for a leaf
    that no form shows."""
    leaf = leaf_of(path)
    return _short(ENTRIES[leaf].label) if leaf else ""


def _short(label: str) -> str:
    return re.split(r"[:,] ", label)[0]


PATHS = {path.split(".")[1]: path for path in ENTRIES if not break_it.is_part(path)} | SPOKEN
"""Last part of a leaf's path, or its spoken name -> path. (No two sections have a leaf of the same name.)"""
LABELS = {name: short_label(path) for name, path in PATHS.items()}
_SHORT = {name: _short(label) for name, label in CHOICE_LABELS.items() if not name.isdigit()}
_SCHEDULES = {name: f"“{label}”" if "," in (label := CHOICE_LABELS[name]) else label for name in TRAITS}
VALUES: dict[str, str] = {**_SHORT, **_SCHEDULES, **SWITCHED}
"""Choices as a sentence names them. A schedule keeps its whole name: the part after the comma distinguishes them."""

_NAME = "|".join(sorted(map(re.escape, LABELS), key=len, reverse=True))
_PATH = rf"(?:model|parallel|train|trace)\.({_NAME})\b"
_ASSIGNED = re.compile(rf"(?<![\w.])(?:(?:model|parallel|train|trace)\.)?({_NAME})='?((?:[\w-]|\.(?=\w))*)'?")
_SET = re.compile(rf"{_PATH}(?: to ((?:[\w-]|\.(?=\w))+))?")
_BARE = re.compile(
    rf"(?<=leave )({_NAME})(?= empty)|(?<=in place of )({_NAME})\b|\b({_NAME})(?= in place of)"
    rf"|(?<=has no field )({_NAME})\b|(?<![\w.=])({'|'.join(n for n in LABELS if '_' in n)})(?![\w=])"
)
_SCHEDULE = re.compile(
    rf"(?<![\w.'-])({'|'.join(sorted((n for n in TRAITS if n not in ('naive', 'custom')), key=len, reverse=True))})"
    r"(?![\w'-])|(?<![\w'-])(naive)(?=, )|(?<=, )(custom)\b"
)


_FAULTS = {kind: fault.title for kind, fault in KINDS.items() if "_" in kind}
"""Kinds of faults that are no plain words, as in messages -> the title of their switch."""
_FAULT = re.compile(rf"(?<![\w.=])({'|'.join(_FAULTS)})(?![\w=])")

_CAP = re.compile(rf"{CAP_NEEDED}(?:; got (-?\d+)(?=\.(?: |$)))?")


def in_form_words(text: str, own: Mapping[str, str] = MappingProxyType({})) -> str:
    """`heads=5 does not divide hidden=128` becomes "Attention heads = 5 does not divide Hidden size = 128".

    A field without a value is quoted. What follows the first line, such as the grid of a schedule, is not changed.
    `own` = {path: label} for a page that labels some fields differently.
    """
    called = {name: own.get(path) or LABELS[name] for name, path in PATHS.items()}
    first, *rest = text.split("\n", 1)
    first = _CAP.sub(_cap_in_mib, first)
    first = _ASSIGNED.sub(lambda found: f"{called[found[1]]} = {_value(found[2])}".rstrip(" ="), first)
    first = _SET.sub(lambda found: f"“{called[found[1]]}”" + (f" to {_value(found[2])}" if found[2] else ""), first)
    first = _BARE.sub(lambda found: f"“{called[found[0]]}”", first)
    first = _FAULT.sub(lambda found: f"“{_FAULTS[found[0]]}”", first)
    return "\n".join([_SCHEDULE.sub(lambda found: VALUES[found[0]], first), *rest])


ENDED_ITSELF = ("not_finite", "time_limit")
"""Causes of an end that the engine words itself, with fields of the spec; other details are of code or a library."""


OF_ERRORS = {
    "ReplicasDiffer": "replicas differ",
    "CorpusError": "the data it reads",
    "CheckpointError": "a checkpoint or weights",
    "AddressError": "the address of its worker",
}
"""Classes of the engine's own errors, which stand before a message in a run's detail -> the cause in few words."""
_OWN_ERROR = re.compile(rf"(?<=: )(?:{'|'.join(OF_ERRORS)}): ")


def in_ended_words(detail: str, cause: str) -> str:
    """Why a run ended, with fields called as in forms where the run ended itself. What code or a library said stays; of
    the engine's own errors the message says all, and their classes are left to the traceback."""
    return in_form_words(detail) if cause in ENDED_ITSELF else _OWN_ERROR.sub("", detail)


def first_error(errors: Mapping[str, str]) -> str:
    """The first of {path: message}, preceded by its field's label unless the message has it."""
    path, message = next(iter(errors.items()))
    said, label = in_form_words(message), short_label(path)
    return said if label.lower() in said.lower() else f"{label}: {said}"


def value_words(path: str, value: Any) -> str:
    """A leaf's value for reading: the label of a choice, yes or no for a switch, a number with its thousands separated
    and some with their unit, any other as its field shows it; '' for nothing."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    info = leaves().get(path)
    if info is not None and value in typing.get_args(info.annotation):
        return CHOICE_LABELS.get(str(value), str(value))
    text = str(text_of(path, value))
    if text.isdecimal() and path not in NAMES:
        text = count_text(int(text))
    if path not in COUNTED:
        return text
    unit, of_zero = COUNTED[path]
    return f"{text} {plural_text(value, unit).rpartition(' ')[2]}" if value else of_zero


def _cap_in_mib(found: re.Match[str]) -> str:
    """What is needed of the memory cap in the unit of its field, which takes parts of a MiB, with what was typed."""
    most = count_text(MAX_BYTES // MIB)
    return f"A number of MiB above 0, at most {most}, is needed" + (
        f"; got {mib_text(int(found[1]))}" if found[1] else ""
    )


def _value(text: str) -> str:
    return VALUES.get(text, text)
