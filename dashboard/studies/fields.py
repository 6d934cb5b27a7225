"""Form fields made from the spec itself, so that a form can show no bound, choice or default that the spec lacks.

A field `train.global_batch` of the spec is called `train__global_batch` in forms: dots do not do in element ids.
"""

from __future__ import annotations

import typing
from typing import Any

from annotated_types import Ge, Gt, Le
from django import forms
from pydantic.fields import FieldInfo

from parallel_core.schedule.traits import runnable
from parallel_core.spec import RunSpec

LABELS = {
    "model.layers": "Layers",
    "model.hidden": "Hidden size",
    "model.heads": "Attention heads",
    "model.seq": "Sequence length",
    "model.vocab": "Vocabulary",
    "model.tied": "Tied embedding",
    "parallel.dp": "Data parallel",
    "parallel.tp": "Tensor parallel",
    "parallel.pp": "Pipeline stages",
    "parallel.schedule": "Schedule",
    "parallel.micro_batches": "Micro-batches",
    "parallel.chunks": "Model chunks",
    "parallel.recompute": "Recomputation",
    "train.global_batch": "Global batch",
    "train.lr": "Learning rate",
    "train.seed": "Seed",
    "train.precision": "Precision",
    "train.device": "Device kind",
    "train.warmup_steps": "Warm-up steps",
}
UNITS = {"train.global_batch": "samples a step", "model.seq": "tokens", "train.warmup_steps": "not timed"}


def html_name(field: str) -> str:
    return field.replace(".", "__")


def default(field: str) -> Any:
    section, leaf = field.split(".", 1)
    return getattr(getattr(RunSpec(), section), leaf)


def form_field(field: str) -> forms.Field:
    """The Django field for one number, switch or choice of the spec."""
    section, leaf = field.split(".", 1)
    info: FieldInfo = RunSpec.model_fields[section].annotation.model_fields[leaf]  # type: ignore[union-attr]
    label, initial = LABELS.get(field, leaf.replace("_", " ").capitalize()), default(field)
    words = [a for a in typing.get_args(info.annotation) if isinstance(a, str)]
    if field == "parallel.schedule":
        words = runnable()
    if words:
        return forms.ChoiceField(label=label, choices=[(word, word) for word in words], initial=initial)
    if info.annotation is bool:
        return forms.BooleanField(label=label, required=False, initial=initial)
    plain, metadata, optional = _plain(info)
    low, high = _bounds(metadata)
    number: Any = forms.IntegerField if plain is int else forms.FloatField
    made = number(
        label=label,
        initial=initial,
        min_value=low,
        max_value=high,
        help_text=_help(field, low, high),
        required=not optional,
    )
    if number is forms.FloatField:
        made.widget.attrs["step"] = "any"
    return made


def to_spec(cleaned: dict[str, Any], names: typing.Iterable[str]) -> dict[str, Any]:
    """Nested spec out of flat form values; names without a value are left to their defaults."""
    spec: dict[str, Any] = {}
    for field in names:
        value = cleaned.get(html_name(field))
        if value not in (None, ""):
            section, leaf = field.split(".", 1)
            spec.setdefault(section, {})[leaf] = value
    return spec


def from_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Flat form values out of a nested spec."""
    return {
        html_name(f"{section}.{leaf}"): value
        for section, fields in spec.items()
        if isinstance(fields, dict)
        for leaf, value in fields.items()
    }


def _plain(info: FieldInfo) -> tuple[Any, list[Any], bool]:
    """The number's type, its rules, and whether it may be left empty (`Annotated[int, Field(ge=1)] | None`)."""
    parts = typing.get_args(info.annotation)
    if type(None) not in parts:
        return info.annotation, info.metadata, False
    inner = FieldInfo.from_annotation(parts[0])
    return inner.annotation, inner.metadata, True


def _bounds(metadata: list[Any]) -> tuple[float | None, float | None]:
    low: list[Any] = [m.ge if isinstance(m, Ge) else m.gt for m in metadata if isinstance(m, Ge | Gt)]
    high: list[Any] = [m.le for m in metadata if isinstance(m, Le)]
    return (low[0] if low else None, high[0] if high else None)


def _help(field: str, low: float | None, high: float | None) -> str:
    parts = [UNITS[field]] if field in UNITS else []
    if low is not None and high is not None:
        parts.append(f"{low:,} to {high:,}".replace(",", "\u202f"))
    return ", ".join(parts)
