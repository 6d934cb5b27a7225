"""The form's group *Break it*: a switch for each kind of fault, with the fault's fields.

The switch of `straggler` is the path `inject.straggler`, its rank `inject.straggler.rank`; in the spec, faults are a
list (`RunSpec.inject`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from dashboard.runs.form.entry import Entry, Group, html_name
from parallel_core.faults import KINDS
from parallel_core.faults.base import plain

SECTION = "inject"
NOTE = "A fault of your choice, injected for real: to see what it looks like. The run says so wherever it is shown."


def group() -> Group:
    """The group with every fault and its fields, folded."""
    entries: list[Entry] = []
    for kind, fault in KINDS.items():
        entries.append(Entry(f"{SECTION}.{kind}", fault.title, fault.blurb))
        for name in fault.fields():
            label = f"{fault.title}: {'MiB' if name == 'mib' else name}"
            entries.append(Entry(f"{SECTION}.{kind}.{name}", label, fault.hints.get(name, "")))
    return Group(SECTION, "Break it", tuple(entries), folded=True, note=NOTE)


def leaves() -> dict[str, FieldInfo]:
    """Switches and fields of all faults by dotted path."""
    out: dict[str, FieldInfo] = {}
    for kind, fault in KINDS.items():
        out[f"{SECTION}.{kind}"] = FieldInfo(annotation=bool, default=False)
        out |= {f"{SECTION}.{kind}.{name}": fault.model_fields[name] for name in fault.fields()}
    return out


def is_part(path: str) -> bool:
    """Whether the leaf belongs to a fault."""
    return path.startswith(f"{SECTION}.")


def switch_of(path: str) -> str | None:
    """The switch that shows or hides a fault's field; None for any other path."""
    parts = path.split(".")
    return ".".join(parts[:2]) if parts[0] == SECTION and len(parts) > 2 else None


def to_inject(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The faults that are switched on, in the form that the spec validates; an empty field takes its default."""
    out = []
    for kind, fault in KINDS.items():
        if not values.get(html_name(f"{SECTION}.{kind}")):
            continue
        given = {name: str(values.get(html_name(f"{SECTION}.{kind}.{name}"), "")).strip() for name in fault.fields()}
        out.append({"kind": kind, **{name: value for name, value in given.items() if value}})
    return out


def from_inject(faults: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Form values for the faults of a spec; other faults are off, with their fields at their defaults."""
    found = {fault["kind"]: fault for fault in faults}
    out: dict[str, Any] = {}
    for kind, fault in KINDS.items():
        out[html_name(f"{SECTION}.{kind}")] = kind in found
        usual = fault(kind=kind).model_dump()
        for name in fault.fields():
            out[html_name(f"{SECTION}.{kind}.{name}")] = plain(found.get(kind, {}).get(name, usual[name]))
    return out
