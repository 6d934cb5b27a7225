"""Where to cut a model into pipeline stages: FLOPs of each layer (or memory, where it generates text), and the cut that
keeps the largest stage smallest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from parallel_core.outline import outline_of
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec


def flop_weights(model: ModelSpec) -> tuple[int, ...]:
    """Forward FLOPs of one sample in each of `model.units()`."""
    return outline_of(model).flops()


def generation_weights(model: ModelSpec) -> tuple[int, ...]:
    """Elements that each of `model.units()` of a GPT holds while it generates a text as long as its sequence:
    parameters, and keys and values in attention layers."""
    outline = GptOutline(model)
    kept = 2 * model.seq * outline.kv_heads * outline.head_dim
    return tuple(
        sum(map(prod, named.values())) + kept * unit.endswith(".attn")
        for unit, named in zip(outline.units(), outline.matrices(), strict=True)
    )


def min_max_cut(weights: Sequence[int], stages: int) -> tuple[int, ...]:
    """Cuts that split `weights` into `stages` non-empty runs with the least possible largest sum.

    Returns the `stages` - 1 indices at which stages 1, 2, ... begin. Of equally good cuts it takes the one with light
    first stages, since under 1F1B those keep the most micro-batches. Bisects the bound (weights are integers): O(n log
    sum), whatever the number of stages. Raises ValueError where a stage would be empty.
    """
    if not 1 <= stages <= len(weights):
        raise ValueError(f"cannot cut {len(weights)} layers into {stages} stages.")
    low, high = max(weights), sum(weights)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(weights, middle)) < stages:
            high = middle
        else:
            low = middle + 1
    return _fill(weights, low, stages)


@lru_cache(maxsize=64)
def min_max_cut_over(weights: tuple[int, ...], devices: tuple[int, ...]) -> tuple[int, ...]:
    """As `min_max_cut` for stages on `devices[s]` devices each: minimises the largest sum per device.

    Dynamic programming over the number of layers in the first stages, O(n^2) a stage. Raises ValueError where a stage
    would be empty.
    """
    if len(devices) > len(weights):
        raise ValueError(f"cannot cut {len(weights)} layers into {len(devices)} stages.")
    sums = np.concatenate([[0.0], np.cumsum(weights, dtype=np.float64)])
    count = np.arange(len(sums))
    apart = np.where(count < count[:, None], sums[:, None] - sums, np.inf)  # [end, begin] -> sum of the layers between
    least = np.where(count > 0, sums / devices[0], np.inf)
    begins = []
    for own in devices[1:]:
        worst = np.maximum(apart / own, least)
        begins.append(worst.argmin(axis=1))
        least = worst[count, begins[-1]]
    cuts, at = [], len(weights)
    for chosen in reversed(begins):
        at = int(chosen[at])
        cuts.append(at)
    return tuple(reversed(cuts))


def _fill(weights: Sequence[int], bound: int, stages: int = 1) -> tuple[int, ...]:
    """The fewest cuts, but at least `stages` - 1, that keep every sum within `bound`.

    Works from the back: each stage is as full as `bound` allows while every earlier stage can still have a unit.
    """
    cuts: list[int] = []
    total = 0
    for i in range(len(weights) - 1, -1, -1):
        total += weights[i]
        owed = stages - 1 - len(cuts)
        if total > bound or i + 1 == owed:
            cuts.append(i + 1)
            total = weights[i]
    return tuple(reversed(cuts))
