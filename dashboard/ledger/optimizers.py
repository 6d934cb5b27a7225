"""The optimizer that plans of a profiled model count with, whatever that of the run whose spec was profiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.fields import Choice
from parallel_core.spec import TrainSpec

USUAL = "adamw"
_MOMENTUM = TrainSpec.model_fields["momentum"].default
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"optimizer": "adamw", "momentum": _MOMENTUM}),
    "sgd": ("SGD with momentum", {"optimizer": "sgd", "momentum": _MOMENTUM}),
    "plain-sgd": ("SGD without momentum", {"optimizer": "sgd", "momentum": 0.0}),
}


def optimizer_field() -> Choice:
    """The form field; its values are keys of `named`."""
    choices = [(key, label) for key, (label, _) in _OPTIMIZERS.items()]
    return Choice(
        label="Optimizer",
        required=False,
        choices=choices,
        help_text="of all plans: it keeps 2, 1 or 0 numbers a parameter",
    )


def named(key: str) -> str:
    """The label of an optimizer; of '' that of AdamW."""
    return _OPTIMIZERS[key or USUAL][0]


def with_optimizer(spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The dumped RunSpec with the optimizer `key`; '' is AdamW."""
    return {**spec, "train": {**spec["train"], **_OPTIMIZERS[key or USUAL][1]}}
