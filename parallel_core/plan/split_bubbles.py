"""Idle time of a step of the zero-bubble schedules whose order is fixed (Qi et al. 2023), for any number of
micro-batches from one a stage up.

A step is idle where it is longer than the work of one rank: from the first operation of any rank to the last one of
any, as with a flush, where no rank updates before the global gradient norm is known. Table 2 of the paper counts each
rank by itself, because its optimizer validates the step afterwards (section 4) and lets ranks begin the next one early.

The longest path through the operations runs, with k and j counted from the last place of the pipeline:

- down the first forward to the last stage, and its backward back to a place j
- along the operations of that place to its last backward
- with that backward back to a place k, whose weight gradients are still to come

With few micro-batches a place has fewer forwards to fill the wait for its first backward, and fewer weight gradients to
fill the wait for its last. Lengths are piecewise linear in j and k, so the longest is found where a piece ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Part = Callable[[Floats], Floats]


def zb_h1(p: Floats, m: Floats, f: Floats, b: Floats, w: Floats) -> Floats:
    """Idle time of ZB-H1 on `p` places with `m` >= p micro-batches, whose F, B and W take `f`, `b` and `w` on a rank:
    the same for every such m. Arrays of any shape, times in any unit."""
    return np.asarray((p - 1) * np.maximum(np.maximum(f, b), f + b - w))


def zb_h2(p: Floats, m: Floats, f: Floats, b: Floats, w: Floats) -> Floats:
    """Idle time of ZB-H2; arguments as of `zb_h1`. Constant from 2p - 1 micro-batches on."""
    missing = _missing(p, m)
    filled = 2 * p - 2 - missing

    def before(j: Floats) -> Floats:
        """Idle time before the first backward at place j."""
        return (p - 1) * f + j * b - np.minimum(2 * j, filled) * f

    def fewer(k: Floats) -> Floats:
        """Weight gradients that place k has left after its last backward, less than the last place."""
        return np.maximum(0, 2 * k - missing)

    ends = [0 * p, missing // 2, -(-missing // 2), filled // 2, -(-filled // 2), p - 1]
    # With an odd number missing, the way from one place to the next may take the last forward instead of the last W.
    between = np.where(missing % 2 == 1, (p - 2) * f + (missing + 1) / 2 * b, 0.0)
    return np.maximum(_longest(p, ends, before, fewer, b, w), between)


def zb_v(p: Floats, m: Floats, f: Floats, b: Floats, w: Floats, extra: Floats | float = 0.0) -> Floats:
    """Idle time of ZB-V, with two chunks a rank; arguments as of `zb_h1`. Constant from 2p - 1 micro-batches on. Exact
    where neither F nor W is longer than B; else a lower bound.

    `extra`: time by which the output layer makes each micro-batch longer on its place, the first one: then the idle
    time of that place, which may work while others still wait. Approximate: it takes the longest path to run along a
    single place.
    """
    f, b, w = f / 2, b / 2, w / 2
    missing = _missing(p, m)

    def before(j: Floats) -> Floats:
        """Idle time before the first forward, or before the first backward, at place j."""
        down = p - 1 - j
        return np.maximum(down * f, down * b + np.maximum(0, missing - down) * f)

    def after(j: Floats) -> Floats:
        """Idle time of the first place, if the last backward of its second chunk goes on to place j."""
        place = p - 1 - j
        return missing * f + np.where(place > missing, place - 2 * missing - 1, -place) * w

    def fewer(k: Floats) -> Floats:
        """Weight gradients that place k has left after its last backward, less than the last place."""
        return np.maximum(0, k - missing) + np.minimum(k, p - 1 - missing)

    ends = [0 * p, missing, p - 2 - missing, p - 1 - missing, p - 1]
    elsewhere = _longest(p, ends, before, fewer, b, w) - m * extra
    return np.where(np.asarray(extra) > 0, np.maximum(elsewhere, _longest(p, ends, after, fewer, b, w)), elsewhere)


IDLE = {"zb-h1": zb_h1, "zb-h2": zb_h2, "zb-v": zb_v}
"""By schedule."""


def _missing(p: Floats, m: Floats) -> Floats:
    """Micro-batches that are missing to 2p - 1, at most p - 1 of them."""
    return np.clip(2 * p - 1 - m, 0, p - 1)


def _longest(p: Floats, ends: Sequence[Floats], before: Part, fewer: Part, b: Floats, w: Floats) -> Floats:
    """The longest path: to place j, then back to a place k >= j before it."""
    places = [np.clip(end, 0, p - 1) for end in ends]
    starts = [before(j) - j * b + fewer(j) * w for j in places]
    finishes = [k * b - fewer(k) * w for k in places]
    found = np.zeros(np.broadcast_shapes(*(np.shape(values) for values in (*starts, *finishes))))
    for j, start in zip(places, starts, strict=True):
        for k, finish in zip(places, finishes, strict=True):
            found = np.maximum(found, np.where(k >= j, start + finish, 0.0))
    return found
