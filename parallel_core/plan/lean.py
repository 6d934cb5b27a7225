"""Ways to train a little more than fits: with recomputation of only as many blocks as must, or a leaner pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from parallel_core.layout import Layout
from parallel_core.outline import block_of
from parallel_core.outline.recompute import blocks
from parallel_core.plan.peak import by_stage
from parallel_core.spec import RunSpec

LEANER = ("v-half", "v-min")
"""Schedules of the same shape as ZB-V that on many stages keep half and a third of its activations, and idle longer (Qi
et al. 2024b)."""


def with_fewest(spec: RunSpec, limit: float) -> RunSpec | None:
    """`spec`, which recomputes nothing, with recomputation of so few blocks that every rank needs `limit` bytes at
    most; None where all of a rank's blocks do not suffice.

    Of a rank the first blocks recompute: the others' activations are gone by then, so that what a recomputation needs
    for a moment adds least to the peak."""
    layout, names = Layout.of(spec), blocks(spec.model.units())
    held = _held(spec, layout, names)
    chosen: set[int] = set()
    while True:
        made = spec if not chosen else _with(spec, sorted(chosen))
        over = {layout.coords(one.rank).place for one in by_stage(made) if one.total > limit}
        if not over:
            return made
        more = [next((block for block in held[place] if block not in chosen), None) for place in over]
        if None in more:
            return None
        chosen.update(block for block in more if block is not None)


def leaner(spec: RunSpec) -> Iterator[RunSpec]:
    """A run in ZB-V in the schedules that keep less."""
    if spec.parallel.schedule == "zb-v" and spec.parallel.pp > 1:
        for name in LEANER:
            with suppress(ValidationError):
                yield _changed(spec, {"schedule": name})


def _held(spec: RunSpec, layout: Layout, names: Sequence[str]) -> list[list[int]]:
    """For each place of the pipeline the blocks of which it has a layer, in order."""
    units, found = spec.model.units(), [set[int]() for _ in range(layout.pp)]
    for stage, own in enumerate(layout.stage_units):
        in_blocks = (block_of(units[unit]) for unit in own)
        found[layout.place(stage)].update(names.index(block) for block in in_blocks if block)
    return [sorted(one) for one in found]


def _with(spec: RunSpec, layers: Sequence[int]) -> RunSpec:
    return _changed(spec, {"recompute": "full", "recompute_layers": layers})


def _changed(spec: RunSpec, changes: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate(spec.model_dump() | {"parallel": spec.parallel.model_dump() | changes})
