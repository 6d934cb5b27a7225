"""Places names at scatter points and numbers in bars so that no text, point or bar covers another text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHARACTER, LINE, GAP, DOT = 6.6, 16.0, 7.0, 6.0
"""Pixels: width of a character of 12 px, height of a line, gap between a point and its name, radius of a point."""


class Box(NamedTuple):
    """Edges in pixels from the left and from the top."""

    left: float
    top: float
    right: float
    bottom: float


_SIDES = ("top right", "bottom right", "top left", "bottom left", "middle right", "middle left")
"""Plotly's text positions in order of preference: the first free one is taken."""


def placed(points: Sequence[tuple[float, float, str]], width: float, height: float) -> list[str]:
    """Returns Plotly's text position of each name.

    `points` = (x, y, name) in pixels, y downwards, in a chart of `width` x `height` pixels. Where no side is free, it
    is the one inside the chart that covers least.
    """
    dots = _dots(points)
    taken = np.empty((0, 4))
    out = [_SIDES[0]] * len(points)
    for i in sorted(range(len(points)), key=lambda i: points[i][0]):
        others = np.concatenate([np.delete(dots, i, axis=0), taken])
        boxes = {side: _box(*points[i], side) for side in _SIDES}
        sides = [side for side, box in boxes.items() if _inside(box, width, height)] or list(_SIDES)
        covers = _meets(np.array([boxes[side] for side in sides]).T[:, :, None], others).sum(axis=1)
        out[i] = sides[int(covers.argmin())]
        taken = np.vstack([taken, boxes[out[i]]])
    return out


def legible(points: Sequence[tuple[float, float, str]], sides: Sequence[str]) -> list[str]:
    """Returns the names, with "" for one that would cover an earlier name, or the middle of a point that does not touch
    its own."""
    dots, middles, kept = _dots(points), _dots(points, 0.0), np.empty((0, 4))
    out = []
    for point, own, side in zip(points, dots, sides, strict=True):
        box = _box(*point, side)
        clear = not _met(box, kept) and not _met(box, middles[~_meets(own, dots)])
        out.append(point[2] if clear else "")
        if clear and point[2]:
            kept = np.vstack([kept, box])
    return out


def _dots(points: Sequence[tuple[float, float, str]], radius: float = DOT) -> NDArray[np.float64]:
    return np.array([(x - radius, y - radius, x + radius, y + radius) for x, y, _ in points]).reshape(-1, 4)


def _met(box: Box, others: NDArray[np.float64]) -> int:
    """How many of the rows (left, top, right, bottom) the box overlaps."""
    return int(_meets(np.array(box), others).sum())


def _meets(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    left, top, right, bottom = others.T
    return (box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])


def _inside(box: Box, width: float, height: float) -> bool:
    return box.left >= 0 and box.right <= width and box.top >= -LINE and box.bottom <= height


def _box(x: float, y: float, name: str, side: str) -> Box:
    across, vertical = CHARACTER * len(name), side.split()[0]
    left = x + GAP if side.endswith("right") else x - GAP - across
    top = {"top": y - LINE - 2, "middle": y - LINE / 2, "bottom": y + 2}[vertical]
    return Box(left, top, left + across, top + LINE)


def room(bars: NDArray[np.void], over: NDArray[np.void], least: float) -> NDArray[np.float64]:
    """Where each bar has room for its number, as (n, 2): its longest part that no bar of `over` lies on.

    That is the whole bar where nothing lies on it, and (nan, nan) where the longest part is shorter than `least`.
    Fields used of both: y (the row), start, end.
    """
    out = np.column_stack([bars["start"], bars["end"]]).astype(np.float64)
    for row in np.unique(over["y"]):
        own = np.sort(over[over["y"] == row], order="start")
        reached = np.maximum.accumulate(own["end"])
        at = np.flatnonzero(bars["y"] == row)
        first = np.searchsorted(reached, out[at, 0], side="right")
        last = np.searchsorted(own["start"], out[at, 1])
        for i, low, high in zip(at.tolist(), first.tolist(), last.tolist(), strict=True):
            if low < high:
                upper = own["start"][low:high].tolist(), reached[low:high].tolist()
                out[i] = _longest_gap(out[i].tolist(), *upper, least)
    return out


def _longest_gap(
    bar: Sequence[float], starts: Sequence[float], reached: Sequence[float], least: float
) -> tuple[float, float]:
    """The longest part of a bar before, between and after what lies on it; `reached` = the latest end so far."""
    gap = max(zip([bar[0], *reached], [*starts, bar[1]], strict=True), key=lambda ends: ends[1] - ends[0])
    return gap if gap[1] - gap[0] >= least else (np.nan, np.nan)
