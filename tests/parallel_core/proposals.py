"""Parses the changes that a refusal's message proposes, as a reader would, and applies them to a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from parallel_core.faults import KINDS
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import ModelSpec, ParallelSpec, TraceSpec, TrainSpec

Raw = Mapping[str, Any]
"""A spec as a document: its sections by name, and `inject`, a list of faults."""
Proposal = dict[str, Any]
"""Dotted field names and their new values, which are set together."""
ROOMS: dict[str, type[BaseModel]] = {
    "model": ModelSpec,
    "parallel": ParallelSpec,
    "train": TrainSpec,
    "trace": TraceSpec,
}
SAID = {leaf: f"{room}.{leaf}" for room, made in ROOMS.items() for leaf in made.model_fields}
"""Field names as used in messages."""
KINDS_OF_SPLIT = {"parallel.dp": "data", "parallel.tp": "tensor", "parallel.pp": "pipeline"}
"""A message may say "needs a pipeline" and give no number."""
LISTS = ("parallel.recompute_layers", "trace.profile_ranks", "trace.profile_steps")
"""Fields that are lists; a message names one entry of them."""
EACH_STAGE = ("parallel.replicas", "parallel.widths")
"""Fields with a number for each stage; a message names those in order."""
CHOICES = {"full": "parallel.recompute", "none": "parallel.recompute", "selective": "parallel.recompute"}
_EMPTY = re.compile(r"leave (\w+) (?:empty|out)")
_NAMED = re.compile(r"(?:.* )?([a-z_]+)=('?[\w.:,-]+'?)")
_INSTEAD = re.compile(r"(.+=\d+) in place of (\w+)")
_OUT = re.compile(r"leave (?:this fault|one of them) out")
_LEFT_OUT = re.compile(r"(\w+) left out")
_LEADS = re.compile(r"^(?:use|try|set|or)\b ?(?:one of |heads of |at most )?")


def proposals(raw: Raw, field: str, message: str) -> Iterator[Proposal]:
    """Each change to `raw` that `message` proposes; `field` is the field at which the message is shown."""
    advice = re.split(r"; |: (?=use )", message.rstrip("."))[-1]
    if found := re.search(r"\[([\d, ]*)\]", advice):
        yield {field: [int(part) for part in found[1].split(",")]}
        return
    for part in re.split(r", or |, | or (?!more|less|fewer)", advice):
        plain = re.sub(r" or (more|less|fewer)$", "", _LEADS.sub("", part))
        if _OUT.search(part):
            yield {".".join(field.split(".")[:2]): None}
        elif left := _EMPTY.search(part):
            yield {field if left[1] == "it" else SAID[left[1]]: None}
        elif instead := _INSTEAD.fullmatch(plain):
            yield {**_named(instead[1], field), SAID[instead[2]]: None}
        elif named := _named(plain, field):
            field = next(iter(named))
            yield named
        elif plain in CHOICES:
            yield {CHOICES[plain]: plain}
        elif plain.isdigit() or (field == "parallel.schedule" and plain in TRAITS):
            yield {field: _value(field, plain)}


def _named(text: str, at: str) -> Proposal:
    """The changes of `zero=2 with zero_backend=own` or `tp=1 with slow_group left out`; {} where a part of it names
    none. `at`: see `path_of`.
    """
    out: Proposal = {}
    for part in re.split(" with | and ", text):
        if found := _NAMED.fullmatch(part):
            field = path_of(found[1], at)
            out[field] = _value(field, found[2])
        elif left := _LEFT_OUT.fullmatch(part):
            out[f"inject.{left[1]}"] = None
        else:
            return {}
    return out


def path_of(name: str, at: str) -> str:
    """The field that a message calls `name`: one of the fault at whose field `at` it is shown, else one of the spec."""
    room, kind, *_ = at.split(".")
    return f"inject.{kind}.{name}" if room == "inject" and name in KINDS[kind].fields() else SAID[name]


def _value(field: str, text: str) -> Any:
    text = text.strip("'")
    if field in EACH_STAGE:
        return [int(part) for part in text.split(",")]
    value = {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)
    return [value] if field in LISTS else value


def taken(raw: Raw, proposal: Proposal) -> dict[str, Any]:
    """The spec with the change applied; an emptied field is reset to its default."""
    out: dict[str, Any] = {name: dict(fields) for name, fields in raw.items() if name != "inject"}
    faults = [dict(fault) for fault in raw.get("inject", ())]
    for field, value in proposal.items():
        room, leaf = field.split(".", 1)
        if room == "inject":
            kind, _, name = leaf.partition(".")
            fault = next(fault for fault in faults if fault["kind"] == kind)
            fault.update({name: value}) if name else faults.remove(fault)
        elif value is None and ROOMS[room].model_fields[leaf].default is not None and leaf != "clip_norm":
            out[room].pop(leaf, None)
        else:
            out.setdefault(room, {})[leaf] = value
    return out | ({"inject": faults} if "inject" in raw else {})
