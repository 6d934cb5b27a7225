"""Parses the changes that a refusal's message proposes, as a reader would, and applies them to a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from parallel_core.spec import ModelSpec, ParallelSpec, TraceSpec, TrainSpec

Raw = Mapping[str, Mapping[str, Any]]
Proposal = tuple[str, Any]
"""A dotted field name and its new value."""
ROOMS = {"model": ModelSpec, "parallel": ParallelSpec, "train": TrainSpec, "trace": TraceSpec}
SAID = {"data": "parallel.dp", "tensor": "parallel.tp", "pipeline": "parallel.pp"} | {
    leaf: f"{room}.{leaf}" for room, made in ROOMS.items() for leaf in made.model_fields
}
"""Field names as used in messages."""
LISTS = ("parallel.recompute_layers", "trace.profile_ranks")
"""Fields that are lists; a message names one entry of them."""
EACH_STAGE = ("parallel.replicas", "parallel.widths")
"""Fields with a number for each stage; a message names those in order."""
CHOICES = {"full": "parallel.recompute", "none": "parallel.recompute", "selective": "parallel.recompute"}
_EMPTY = re.compile(r"leave (\w+) (?:empty|out)")
_NAMED = re.compile(r"(?:.* )?([a-z_]+)=('?[\w.:-]+'?)")
_LEADS = re.compile(r"^(?:use|try|set|or)\b ?(?:one of |heads of |at most )?")


def proposals(raw: Raw, field: str, message: str) -> Iterator[Proposal]:
    """Each change to `raw` that `message` proposes; `field` is the field at which the message is shown."""
    advice = re.split(r"; |: (?=use )", message.rstrip("."))[-1]
    if found := re.search(r"\[([\d, ]*)\]", advice):
        yield field, [int(part) for part in found[1].split(",")]
        return
    if field in EACH_STAGE and (found := re.search(r"use ((?:\d+, )+\d+)", advice)):
        yield field, [int(part) for part in found[1].split(",")]
    for part in re.split(r", or |, | or (?!more|less|fewer)", advice):
        plain = re.sub(r" or (more|less|fewer)$", "", _LEADS.sub("", part))
        if left := _EMPTY.search(part):
            yield field if left[1] == "it" else SAID[left[1]], None
        elif part.endswith("turn it off"):
            yield "parallel.sequence", False
        elif named := _NAMED.fullmatch(plain):
            field = SAID[named[1]]
            yield field, _value(named[2])
        elif plain in CHOICES:
            yield CHOICES[plain], plain
        elif plain.isdigit() and field == "parallel.widths" and "divide" in message:
            told = {int(number) for number in re.findall(r"\d+", advice)}
            yield field, [width if width in told else int(plain) for width in raw["parallel"]["widths"]]
        elif plain.isdigit() and field not in EACH_STAGE:
            yield field, [int(plain)] if field in LISTS else int(plain)


def _value(text: str) -> Any:
    text = text.strip("'")
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def taken(raw: Raw, proposal: Proposal) -> dict[str, dict[str, Any]]:
    """The spec with the change applied; an emptied field is reset to its default."""
    (room, leaf), value = proposal[0].split(".", 1), proposal[1]
    out = {name: dict(fields) for name, fields in raw.items()}
    if value is None and ROOMS[room].model_fields[leaf].default is not None and leaf != "clip_norm":
        out[room].pop(leaf, None)
    else:
        out.setdefault(room, {})[leaf] = value
    return out
