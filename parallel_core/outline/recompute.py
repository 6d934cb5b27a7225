"""Which blocks of a run recompute activations, and how; used by spec, engine and planner.

`full` saves only a block's input (Chen et al. 2016); `selective` saves everything but what the attention core computes
from queries, keys and values (Korthikanti et al. 2022, section 5). Either may be limited to some blocks by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from parallel_core.outline.base import Outline, block_of
from parallel_core.rules import few, rule_error

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec, RunSpec

Recompute = Literal["none", "selective", "full"]

RECOMPUTE_LABELS: dict[str, str] = {"none": "", "selective": "selective AR", "full": "AR"}
"""The part of a strategy's name for each setting."""
MOST_LISTED = 4
"""The most layers that a strategy's name lists."""


def blocks(units: list[str]) -> list[str]:
    """Returns the names of the blocks that the layers `units` belong to, in order."""
    return list(dict.fromkeys(block for block in map(block_of, units) if block))


def recomputed(split: ParallelSpec, units: list[str]) -> frozenset[str]:
    """Returns the names of the blocks that recompute, of a model with the layers `units`, which may be fewer than a
    valid spec has."""
    if split.recompute == "none":
        return frozenset()
    have = blocks(units)
    chosen = range(len(have)) if split.recompute_layers is None else split.recompute_layers
    return frozenset(have[i] for i in chosen if i < len(have))


def rebuilt(split: ParallelSpec, units: list[str]) -> list[bool]:
    """Returns for each of the layers `units` whether full recomputation runs its forward again
    (without a block's last product, `Outline.unread`)."""
    again = recomputed(split, units) if split.recompute == "full" else frozenset()
    return [block_of(unit) in again for unit in units]


def recompute_fields(split: ParallelSpec) -> dict[str, Any]:
    """Returns the fields of ParallelSpec that select the recomputation of `split`."""
    return {"recompute": split.recompute, "recompute_layers": split.recompute_layers}


def recompute_label(split: ParallelSpec) -> str:
    """Returns `label_of` the recomputation of `split`."""
    return label_of(split.recompute, split.recompute_layers)


def label_of(how: str, layers: Sequence[int] | None) -> str:
    """Returns `AR`, `selective AR`, `AR of layers 0, 2`, or '' without recomputation; `layers` rise, None = all."""
    label = RECOMPUTE_LABELS[how]
    return f"{label} of {_layers_text(layers)}" if label and layers else label


def _layers_text(layers: Sequence[int]) -> str:
    """Returns `layer 0`, `layers 0, 2`, `layers 0 to 11`, or `12 layers` where more than MOST_LISTED are apart."""
    first, last, count = layers[0], layers[-1], len(layers)
    if count == 1:
        return f"layer {first}"
    if count > 2 and last - first == count - 1:
        return f"layers {first} to {last}"
    return f"layers {', '.join(map(str, layers))}" if count <= MOST_LISTED else f"{count} layers"


def _check_core(spec: RunSpec, outline: Outline) -> None:
    if spec.parallel.recompute == "selective" and not outline.core_flops():
        raise rule_error(
            ("parallel.recompute", "model.kind"),
            f"recompute=selective recomputes the core of attention, and kind={spec.model.kind} has none; "
            f"use {'full or none' if spec.parallel.recompute_layers is None else 'full'}.",
        )


def _check_chosen(spec: RunSpec, outline: Outline) -> None:
    if spec.parallel.recompute_layers is not None and spec.parallel.recompute == "none":
        able = "full or selective" if outline.core_flops() else "full"
        raise rule_error(
            ("parallel.recompute_layers", "parallel.recompute"),
            f"recompute=none has no layers to choose; use {able}, or leave recompute_layers empty.",
        )


def _check_rising(spec: RunSpec, outline: Outline) -> None:
    chosen = spec.parallel.recompute_layers
    if chosen is not None and (list(chosen) != sorted(set(chosen)) or not chosen):
        right = f"try {sorted(set(chosen))}" if chosen else "leave it out for all"
        message = f"recompute_layers must rise strictly; got {list(chosen)}; {right}."
        raise rule_error(("parallel.recompute_layers",), message)


def _check_layers(spec: RunSpec, outline: Outline) -> None:
    chosen = spec.parallel.recompute_layers
    if chosen and max(chosen) >= (have := len(blocks(outline.units()))):
        near = few(range(have), max(chosen))
        raise rule_error(
            ("parallel.recompute_layers", "model.layers"),
            f"recompute_layers={max(chosen)} is no layer: they count from 0 to {have - 1}; try {near}.",
        )


RECOMPUTE_CHECKS = (_check_core, _check_chosen, _check_rising, _check_layers)
"""Each raises an error where the recomputation of a spec, whose model has the outline, breaks a rule."""
