"""Pipelines whose stages have different numbers of devices: which of the many shapes are worth a simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from parallel_core.plan.partition import flop_weights, min_max_cut_over
from parallel_core.spec import ModelSpec

Shape = tuple[int, ...]


@lru_cache(maxsize=64)
def shapes(model: ModelSpec, devices: int, sizes: Collection[int] | None = None, most: int = 3) -> tuple[Shape, ...]:
    """The `most` shapes on at most `devices` devices whose fullest stage has the least work a device by FLOPs; of equal
    ones those with the fewest stages, which idle least. `sizes`: the numbers of devices that a stage may have (None:
    any)."""
    weights = flop_weights(model)
    able = [shape for shape in _all(devices, sizes) if 1 < len(shape) <= len(weights) and len(set(shape)) > 1]
    return tuple(sorted(able, key=lambda shape: (_fullest(weights, shape), len(shape), shape))[:most])


def _all(devices: int, sizes: Collection[int] | None) -> Iterator[Shape]:
    yield ()
    for first in range(1, devices + 1):
        if sizes is None or first in sizes:
            yield from ((first, *rest) for rest in _all(devices - first, sizes))


def _fullest(weights: tuple[int, ...], shape: Shape) -> float:
    """Most work a device of any stage, with the cuts that keep it least."""
    cuts = min_max_cut_over(weights, shape)
    ends = zip((0, *cuts), (*cuts, len(weights)), shape, strict=True)
    return max(sum(weights[first:stop]) / count for first, stop, count in ends)
