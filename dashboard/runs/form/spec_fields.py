"""Maps the leaves of RunSpec to the fields of forms: New run, and the base of New study.

A form only carries text; RunSpec alone validates it. A leaf `train.lr` is the form field `train__lr`. Bounds and
choices shown at a field are read from the spec, so that the form cannot offer what the spec refuses.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from functools import cache
from types import MappingProxyType
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from django import forms
from pydantic.fields import FieldInfo

from dashboard.runs.form import break_it, relevance
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from dashboard.runs.form.entry import Entry, html_name
from dashboard.runs.form.spec_groups import GROUPS
from dashboard.runs.texts.corpus_select import CorpusSelect
from parallel_core import limits
from parallel_core.analysis.quantities import bound_text
from parallel_core.outline import BUILT_IN_CORPORA, KINDS
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec

MIB = 1024 * 1024
ENTRIES = {entry.path: entry for group in GROUPS for entry in group.entries}


def paths_of(key: str) -> tuple[str, ...]:
    """Leaves of the group of fields with that key."""
    return tuple(entry.path for group in GROUPS if group.key == key for entry in group.entries)


@cache
def leaves() -> Mapping[str, FieldInfo]:
    """Every leaf of the spec by dotted path; cached because a form asks for each of its fields."""
    plain = {
        f"{section}.{leaf}": info
        for section, outer in RunSpec.model_fields.items()
        if section != break_it.SECTION
        for leaf, info in typing.cast(Any, outer.annotation).model_fields.items()
    }
    return MappingProxyType(plain | break_it.leaves())


def is_optional(info: FieldInfo) -> bool:
    return type(None) in typing.get_args(info.annotation)


def bounds(info: FieldInfo) -> str:
    """The bounds of a leaf for display, "1 to 1 024"; "" unless the spec sets both."""
    rules = _rules(info)
    low = next((m.ge if isinstance(m, Ge) else m.gt for m in rules if isinstance(m, Ge | Gt)), None)
    high = next((m.le if isinstance(m, Le) else m.lt for m in rules if isinstance(m, Le | Lt)), None)
    if low is None or high is None:
        return ""
    strict = "above " if any(isinstance(m, Gt) for m in rules) else ""
    below = "below " if any(isinstance(m, Lt) for m in rules) else ""
    return f"{strict}{bound_text(typing.cast(Any, low))} to {below}{bound_text(typing.cast(Any, high))}"


def ends(info: FieldInfo) -> tuple[float | None, float | None]:
    """The least and the greatest value that a leaf may have; None where there is none, or it is itself excluded."""
    rules = _rules(info)
    low = next((float(typing.cast(Any, m.ge)) for m in rules if isinstance(m, Ge)), None)
    return low, next((float(typing.cast(Any, m.le)) for m in rules if isinstance(m, Le)), None)


def _rules(info: FieldInfo) -> list[Any]:
    """The constraints of a leaf; for an optional number (`Annotated[int, Field(ge=1)] | None`) those of the number."""
    inner = typing.get_args(info.annotation)[0] if is_optional(info) else None
    return info.metadata if inner is None else FieldInfo.from_annotation(inner).metadata


def form_field(entry: Entry) -> forms.Field:
    """A field that accepts any text, with the widget that fits the leaf; each form may change its own."""
    return deepcopy(_form_field(entry))


@cache
def _form_field(entry: Entry) -> forms.Field:
    """Made once, because a form has a hundred of them."""
    made = _plain_field(entry)
    made.widget.attrs |= shown_for(entry.path)
    return made


def shown_for(path: str) -> dict[str, str]:
    """Attributes that tell the browser when to show a field: the field that it depends on, and that one's values."""
    return shown_while(relevance.condition(path))


def shown_while(needed: relevance.Condition | None) -> dict[str, str]:
    """`shown_for` a condition."""
    if needed is None:
        return {}
    return {"data-shown-for": " ".join((html_name(needed.leaf), *["not"] * needed.negated, *needed.values))}


def _plain_field(entry: Entry) -> forms.Field:
    info = leaves()[entry.path]
    hint = ", ".join(part for part in (entry.hint, "" if entry.path in _OTHER_UNITS else bounds(info)) if part)
    if info.annotation is bool:
        return forms.BooleanField(label=entry.label, required=False, help_text=hint)
    widget: forms.Widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
    if entry.path == "parallel.program":
        widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "autocomplete": "off"})
    words = [word for word in typing.get_args(info.annotation) if isinstance(word, str)]
    if entry.path == "parallel.schedule":
        words = list(TRAITS)
    if entry.path == "parallel.zero":
        words, hint = ["0", "1", "2", "3"], ""
    if entry.path == "train.corpus":
        widget = CorpusSelect()
    elif words or entry.path == "train.weights":
        widget = forms.Select(choices=[(word, CHOICE_LABELS.get(word, word)) for word in words])
    return forms.CharField(label=entry.label, required=False, widget=widget, help_text=hint)


def _numbers_in(text: str) -> Any:
    return [part for part in text.replace(",", " ").split() if part] or None


def _numbers_out(value: Any) -> str:
    return ", ".join(map(str, value))


def _mib_in(text: str) -> Any:
    try:
        return round(float(text) * MIB)
    except (ValueError, OverflowError):
        return text


def mib_text(value: int) -> str:  # bytes, as a field in MiB shows them
    return _digits(value / MIB)


def _digits(value: float) -> str:
    """All digits, so that a cloned run is the same run."""
    return repr(float(value)).removesuffix(".0")


_NUMBERS = ("parallel.cuts", "parallel.replicas", "parallel.widths", "parallel.recompute_layers", "trace.profile_ranks")
_OTHER_UNITS = ("trace.memory_cap",)
"""Leaves that are typed in another unit than the spec's, whose bounds would be wrong by its factor."""
LISTS = (*_NUMBERS, "trace.profile_steps")
"""Leaves whose value is a list of numbers."""
_IN: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_NUMBERS, _numbers_in),
    "trace.profile_steps": lambda text: _numbers_in(text) or [],
    "trace.memory_cap": _mib_in,
}
_OUT: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(LISTS, _numbers_out),
    "trace.memory_cap": mib_text,
}


def value_of(path: str, text: str) -> Any:
    """The value of a leaf for RunSpec, from the text of its field, which is not empty: sizes are typed in MiB."""
    return _IN.get(path, str)(text)


def to_spec(values: Mapping[str, Any], paths: Collection[str] | None = None) -> dict[str, Any]:
    """The nested dict for RunSpec, from flat form values (text, or bool for switches).

    Leaves that do not apply, given the others, are left out, whatever their fields contain. `paths` = the leaves that
    the form has; others are left out. None: every leaf that has a field.
    """
    spec: dict[str, Any] = {}
    if paths is None and (faults := break_it.to_inject(values)):
        spec[break_it.SECTION] = faults
    for path, info in leaves().items():
        if break_it.is_part(path) or path not in ENTRIES:
            continue
        read = relevance.is_read(path, lambda leaf: values.get(html_name(leaf), _default(leaf)))
        if not read or (paths is not None and path not in paths):
            continue
        section, leaf = path.split(".", 1)
        value = values.get(html_name(path))
        if path == "train.corpus" and _of_another_kind(str(value), str(values.get(html_name("model.kind")))):
            continue
        if isinstance(value, str):
            value = value.strip()
            value = None if not value and is_optional(info) else value_of(path, value)
        spec.setdefault(section, {})[leaf] = value
    return spec


def _of_another_kind(corpus: str, kind: str) -> bool:
    """Whether a corpus that is built in is left from another kind of model, which was chosen before: the run then has
    the usual one of its own. What the user has brought is kept, and refused with its reason."""
    return corpus in BUILT_IN_CORPORA and kind in KINDS and kind not in relevance.takers(corpus)


def _default(path: str) -> Any:
    section, leaf = path.split(".", 1)
    return getattr(getattr(RunSpec(), section), leaf)


def from_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Flat form values from a nested spec; leaves that it lacks have their defaults."""
    whole = RunSpec().model_dump(mode="json")
    values = break_it.from_inject(spec.get(break_it.SECTION, ()))
    for path in (path for path in ENTRIES if not break_it.is_part(path)):
        section, leaf = path.split(".", 1)
        value = {**whole[section], **spec.get(section, {})}[leaf]
        values[html_name(path)] = text_of(path, value)
    return values


@cache
def usual() -> Mapping[str, Any]:
    """The default of each field."""
    return MappingProxyType(from_spec({}))


def text_of(path: str, value: Any) -> Any:
    """A leaf's value as its field has it: text, or a bool for a switch; '' for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return value
    return _OUT[path](value) if path in _OUT else _digits(value) if isinstance(value, float) else str(value)


def part_of(spec: RunSpec, paths: Collection[str]) -> dict[str, Any]:
    """These leaves of a valid spec, as a nested dict."""
    whole, part = spec.model_dump(mode="json"), dict[str, Any]()
    for path in paths:
        section, leaf = path.split(".", 1)
        part.setdefault(section, {})[leaf] = whole[section][leaf]
    return part


def leaf_of(path: str) -> str:
    """The leaf that has a form field for an error of this path, `parallel.cuts` for `parallel.cuts.0`; '' if none."""
    parts = path.split(".")
    known = (".".join(parts[:length]) for length in (3, 2))
    return next((leaf for leaf in known if leaf in ENTRIES), "")


def form_name(path: str) -> str:
    """The form field at which an error of this path is shown; the path itself if there is none."""
    leaf = leaf_of(path)
    return html_name(leaf) if leaf else path


NAME_HINT = f"at most {limits.MAX_NAME} characters; empty: the strategy's name"
