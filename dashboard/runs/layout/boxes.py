"""A matrix and the part of it that a rank holds, as rectangles, without markup."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallel_core.plan.rank_shards import Matrix

_SIDE = 64.0
"""Pixels of the longest side of any matrix."""


@dataclass(frozen=True)
class Box:
    """A matrix drawn to scale: its full size in pixels, and the rectangle in it that is held."""

    name: str
    text: str
    width: float
    height: float
    x: float
    y: float
    held_width: float
    held_height: float


def box_of(matrix: Matrix, longest: int) -> Box:
    """Sides are proportional to the square root of their length, so that a vector near a large matrix is visible."""
    sides = [max(5.0, _SIDE * math.sqrt(n / longest)) for n in matrix.shape]
    height, width = sides if len(sides) == 2 else (5.0, sides[0])
    x, y, held_width, held_height = 0.0, 0.0, width, height
    if matrix.dim == 0 and len(matrix.shape) == 2:
        held_height = height / matrix.parts
        y = held_height * matrix.part
    elif matrix.dim is not None:
        held_width = width / matrix.parts
        x = held_width * matrix.part
    return Box(matrix.name, _shape(matrix), width, height, x, y, held_width, held_height)


def _shape(matrix: Matrix) -> str:
    whole = " × ".join(map(str, matrix.shape))
    if matrix.dim is None:
        return whole
    size = matrix.shape[matrix.dim] // matrix.parts
    first = size * matrix.part
    what = "rows" if matrix.dim == 0 else "columns"
    return f"{whole}: {what} {first}–{first + size - 1}"
