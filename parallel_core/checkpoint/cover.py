"""Whether boxes cover a tensor: every element once, and none outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

Box = tuple[Sequence[int], Sequence[int]]
"""Offsets and sizes of a box of elements, by dimension."""


def covers(shape: Sequence[int], boxes: Iterable[Box]) -> bool:
    """Whether each element of a tensor of `shape` lies in exactly one of `boxes`, none of which is empty.

    In a time that grows with the number of boxes, and doubles with each dimension: a sum of boxes is known by its
    corners, each with a sign that changes with each side that is an end. (Where sizes merely add up, two boxes may
    overlap and leave a gap elsewhere.)
    """
    corners: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        if 0 in sizes:
            return False
        _add(corners, offsets, sizes, 1)
    _add(corners, (0,) * len(shape), shape, -1)
    return not any(corners.values())


def _add(corners: Counter[tuple[int, ...]], offsets: Sequence[int], sizes: Sequence[int], sign: int) -> None:
    for ends in product((False, True), repeat=len(sizes)):
        corner = tuple(at + size * end for at, size, end in zip(offsets, sizes, ends, strict=True))
        corners[corner] += -sign if sum(ends) % 2 else sign
