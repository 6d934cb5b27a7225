"""Layers of a model that compute the same, as the blocks of a GPT do: a profile gives them one time.

What their times differ by is chance, most of it other processes' work, and a search for cuts takes what is short by
chance. On a busy host equal blocks took 1.3 to 4.3 ms, by which other cuts of ZB-V were to be 1.075 times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_core.outline import outline_of
from parallel_core.spec import ModelSpec


def equal_layers(model: ModelSpec) -> list[list[int]]:
    """The places of layers that have parameters of the same names and shapes, inputs and outputs of the same shapes,
    and as many FLOPs, group by group."""
    outline = outline_of(model)
    units, shapes, flops = outline.units(), outline.boundaries(), outline.flops()
    matrices = outline.matrices() or [{}] * len(units)
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, unit in enumerate(units):
        name, after = re.sub(r"\d+", "#", unit), shapes[i + 1] if i + 1 < len(units) else ()
        found.setdefault((name, shapes[i], after, flops[i], tuple(matrices[i].items())), []).append(i)
    return list(found.values())


def levelled(rows: Iterable[Mapping[str, Any]], model: ModelSpec) -> list[dict[str, Any]]:
    """Rows of layers (`table.Layers`) in which equal ones have the mean of their `seconds`."""
    groups = equal_layers(model)
    return [
        {**row, "seconds": {part: _mean(seconds, groups) for part, seconds in row["seconds"].items()}} for row in rows
    ]


def _mean(seconds: Sequence[float], groups: Sequence[Sequence[int]]) -> tuple[float, ...]:
    out = np.array(seconds, np.float64)
    for group in groups:
        out[group] = out[group].mean()
    return tuple(out.tolist())
