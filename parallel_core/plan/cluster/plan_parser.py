"""Parses a plan as a person types it: `TP 8 x PP 16 x DP 8, 1f1b, micro-batch 1, ZeRO-1, SP, selective recompute`.

`read` accepts the output of `Plan.label` and `SearchResult.label`, in any order and case, with `=` or nothing between a
name and its number.
"""

from __future__ import annotations

import re
from typing import Any

from parallel_core.analysis.quantities import bound_text
from parallel_core.plan.cluster.plans import RECOMPUTE, SCHEDULES, STATES, Plan
from parallel_core.schedule.traits import TRAITS

MOST_CHARACTERS = 200
MOST_WAYS = 100_000
MOST_CHUNKS = 64
_NUMBERS = {"tp": "tp", "pp": "pp", "dp": "dp", "micro-batch": "micro_batch", "mb": "micro_batch", "chunks": "chunks"}
_NAMES = {"zero": "ZeRO", "state": "Bytes a parameter"}
_SCHEDULE = "|".join(  # those first that begin like a shorter one; chunks may follow where their number is free
    re.escape(name) + (r"(?:\s+\d+)?" if TRAITS[name].most is None else "")
    for name in sorted(SCHEDULES, key=len, reverse=True)
)
_PATTERN = re.compile(
    r"(?P<number>\b(?:tp|pp|dp|micro-batch|mb|chunks)\s*=?\s*\d+)"
    r"|(?P<zero>\bzero\s*[-= ]?\s*[0-3])"
    rf"|(?P<schedule>\b(?:{_SCHEDULE})\b)"
    r"|(?P<recompute>\b(?:no|none|selective|full)\s+recomput(?:e|ation))"
    r"|(?P<bytes>\b\d+\s+bytes)"
    r"|(?P<flag>\b(?:sp|sequence parallel|by columns|offload|fp32|16-bit|one device)\b)"
    r"|(?P<on>\bon\s+\d+\s+of\s+\d+\s+devices\b)"
    r"|(?P<between>[\s,;x×+*]+)"
)
UNDERSTOOD = "TP, PP, DP, micro-batch, ZeRO-1, SP, offload, 1f1b, selective recompute"


def read(text: str) -> Plan:
    """The plan described by a text; parts left out are 1 or off. Raises ValueError with the words that are not
    understood, for a number out of range, or for a part that is given twice with two values."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"A plan has at most {MOST_CHARACTERS} characters; these are {len(text)}.")
    fields: dict[str, Any] = {}
    at, lower = 0, text.lower()
    while at < len(lower):
        match = _PATTERN.match(lower, at)
        if match is None:
            raise ValueError(f"“{text[at : at + 20]}” is not understood; say for example {UNDERSTOOD}.")
        kind = match.lastgroup or ""
        if kind != "between":
            _add(fields, _field(kind, match.group()))
        at = match.end()
    traits = TRAITS[fields.get("schedule", "1f1b")]
    if traits.least > 1:
        fields.setdefault("chunks", traits.chunks)
    elif fields.get("chunks", 1) > 1:
        fields["schedule"] = "interleaved"
    return Plan(**fields)


def _add(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds what one part of the text says. Raises ValueError if another part says otherwise."""
    for name, value in more.items():
        if fields.setdefault(name, value) != value:
            raise ValueError(f"{_called(name)} is given twice: {fields[name]} and {value}.")


def _called(name: str) -> str:
    """A field of a plan at the beginning of a sentence."""
    return name.upper() if name in ("tp", "pp", "dp") else _NAMES.get(name, name.replace("_", "-").capitalize())


def _field(kind: str, word: str) -> dict[str, Any]:
    if kind == "number":
        name, value = re.fullmatch(r"([a-z-]+?)\s*=?\s*(\d+)", word).groups()  # type: ignore[union-attr]
        if not 1 <= int(value) <= MOST_WAYS:
            raise ValueError(f"{_called(_NUMBERS[name])} must be from 1 to {bound_text(MOST_WAYS)}; got {value}.")
        return {_NUMBERS[name]: int(value)}
    if kind == "zero":
        return {"zero": int(word[-1])}
    if kind == "schedule":
        name, *chunks = word.split()
        chosen = next(known for known in SCHEDULES if known == name)
        if chunks and not 1 <= int(chunks[0]) <= MOST_CHUNKS:
            raise ValueError(f"The chunks of {name} must be from 1 to {MOST_CHUNKS}; got {chunks[0]}.")
        return {"schedule": chosen, **({"chunks": int(chunks[0])} if chunks else {})}
    if kind == "recompute":
        first = word.split()[0]
        return {"recompute": first if first in RECOMPUTE else "none"}
    if kind == "bytes":
        state = int(word.split()[0])
        if state not in STATES:
            raise ValueError(f"Bytes a parameter are {', '.join(map(str, STATES))}; got {state}.")
        return {"state": state}
    return dict(_FLAGS.get(word, {}))


_FLAGS: dict[str, dict[str, Any]] = {
    "sp": {"sequence_parallel": True},
    "sequence parallel": {"sequence_parallel": True},
    "by columns": {"by_columns": True},
    "offload": {"offload": True},
    "fp32": {"precision": "fp32"},
}
