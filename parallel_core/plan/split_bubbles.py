"""Idle time of a step of the zero-bubble schedules whose order is fixed (Qi et al. 2024a), in closed form.

A step is idle where it is longer than the work of the rank with the output layer: from the first operation of any rank
to the last one of any, as with a flush, where no rank updates before the global gradient norm is known. Table 2 of the
paper counts each rank by itself, because its optimizer validates the step afterwards (section 4) and lets ranks begin
the next one early.

A step is as long as its longest path. Along the operations of one place a path is never idle; where it goes on to
another place with a message, what that place has done by then is known from the two programs, so each message adds a
known idle time (or takes away some), which depends on how far the step is. These amounts are piecewise linear in the
place, so the largest sum is found where a piece ends. Arguments are arrays of any shape, times in any unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = Sequence[Floats]
"""Of F, B and W."""
_NONE: Times = (np.array(0.0),) * 3


class Idle(Protocol):
    """Idle time on `p` places of `m` >= p micro-batches, whose F, B and W take `each` on a rank; the rank with the
    output layer takes `more` beside, which may be negative for one of them, not in their sum.

    Exact where all ranks are alike. With an output layer of its own that of ZB-H1 is exact, too, and that of ZB-H2 if F
    and B together are not shorter there, else too short by up to 4 % of the step in rare cases. That of ZB-V is
    too short in rare cases, by up to 5 %, where none is shorter there, F is at most B + W, and B at most F + W.
    """

    def __call__(self, p: Floats, m: Floats, each: Times, more: Times = ...) -> Floats: ...


def zb_h1(p: Floats, m: Floats, each: Times, more: Times = _NONE) -> Floats:
    """Idle time of ZB-H1 (`Idle`)."""
    return _Line(1, p, m, each, more).idle()


def zb_h2(p: Floats, m: Floats, each: Times, more: Times = _NONE) -> Floats:
    """Idle time of ZB-H2 (`Idle`)."""
    return _Line(2, p, m, each, more).idle()


class _Line:
    """The paths of a schedule whose place k, counted from the last one, has c k + 1 forwards ahead of its backwards,
    and c (p - 1 - k) weight gradients behind them.

    A path goes down the first forward to the last place (k = 0), stays there, and leaves with a backward:
    - with the last one, back to a place k
    - with one before it: then back to a place j, and with the last one on to a place k
    Before, it may have left for the next place, where F and B are longer, and come back when weight gradients begin.
    """

    def __init__(self, c: int, p: Floats, m: Floats, each: Times, more: Times) -> None:
        self.c, self.last, self.end = c, p - 1, m - 1
        self.f, self.b, self.w = each
        self.longer, self.weights = more[0] + more[1], more[2]

    def idle(self) -> Floats:
        last, bend = self.last, self.last - self.end / self.c
        ends = [np.clip(k, np.minimum(1, last), last) for k in (0 * last, np.floor(bend), np.ceil(bend), last)]
        found = self._elsewhere(0 * last)
        for j in ends:
            found = np.maximum(found, self._elsewhere(0 * last) + self._left(0 * last, j, j))
            found = np.maximum(found, self._never(j))
            for k in (np.maximum(j, end) for end in ends[1:]):
                some = _over(self.end, self.c * (last - j))
                found = np.maximum(found, self._elsewhere(some) + self._left(some, j, k))
                found = np.maximum(found, self._left(self.end, j, k))
        return np.asarray(np.where(last > 0, last * self.f + found, 0.0))

    def _left(self, n: Floats, j: Floats, k: Floats) -> Floats:
        """Idle time from the `n`-th backward from the end on, with which the path goes to j; then on to k."""
        c, last, at = self.c, self.last, self.end - n
        saved = self.f * np.minimum(n, c * j) + self.w * (_over(at, c * (last - j)) - _over(at, c * last))
        saved = saved + self.w * np.minimum(self._owed(self.end, j, k), self._owed(self._late(at, j), j, k))
        deferred = np.minimum(self.end + 1, n + 1 + c * last)
        return np.asarray(k * self.b - saved - n * self.longer - self.weights * deferred)

    def _late(self, at: Floats, j: Floats) -> Floats:
        """The first backward, not before number `at`, after which place j has no forward left."""
        return np.asarray(np.maximum(at, self.end - self.c * j))

    def _owed(self, number: Floats, j: Floats, k: Floats) -> Floats:
        """Weight gradients that place k has done before its backward with this number, and j has not."""
        return _over(number, self.c * (self.last - k)) - _over(number, self.c * (self.last - j))

    def _elsewhere(self, n: Floats) -> Floats:
        """Idle time from being elsewhere first, back at the last place for the `n`-th backward from the end."""
        c, longer, b = self.c, self.longer, self.b
        back = np.minimum(c * self.last, self.end - n)
        waited = back * (-longer - b)  # it began with a later forward of the first place
        never = -longer * back - c * b  # it has not been at the last place before
        again = -longer * np.maximum(back - 1, 0) - (c - 1) * (self.f + b)
        return np.asarray(np.maximum(np.maximum(0.0, waited), np.maximum(never, again)))

    def _never(self, k: Floats) -> Floats:
        """Idle time of a path from the next place back to k, which is never at the last one."""
        alike = (k - 1) * self.b - self.f - self.w * self._owed(self.end, 1 + 0 * k, k)
        return np.asarray(alike - (self.end + 1) * (self.longer + self.weights))


def zb_v(p: Floats, m: Floats, each: Times, more: Times = _NONE, less: Times = _NONE) -> Floats:
    """Idle time of ZB-V (`Idle`), with two chunks a rank and the output layer on the first place, whose first chunk
    takes `less` of F, B and W than half of `each`; `more` is of both of its chunks, and its sum may be negative, too.

    With `less`, of a layer, a step is 0.2 % off on average and at most 3 % where chunks have two layers or more and
    m >= 2p - 1; else 1 % on average, and a fifth where chunks of one layer have p micro-batches."""
    return _Vee(p, m, each, more, less).idle()


class _Vee:
    """The paths of ZB-V on places 0 .. `last`, with `missing` micro-batches to the 2p - 1 of its pattern."""

    def __init__(self, p: Floats, m: Floats, each: Times, more: Times, less: Times) -> None:
        self.m, self.last, self.missing = m, p - 1, np.clip(2 * p - 1 - m, 0, p - 1)
        self.f, self.b, self.w = (time / 2 for time in each)
        self.more, self.less = more, less

    def idle(self) -> Floats:
        f, missing, last = self.f, self.missing, self.last
        turn = np.minimum(missing + 1, last)
        places = [np.minimum(end, last) for end in (0 * missing, missing, turn, 2 * missing, last)]
        anywhere, home = 0 * f, 0 * f
        for c in places:
            anywhere = np.maximum(anywhere, self._until(c, turn) + self._after(c))
            home = np.maximum(home, np.where(c > 0, self._up(c) + self._gone(c), 0.0))
        waited = missing * f + (2 * last - missing) * self.less[0]  # while the first place has no forward left to do
        return np.asarray(np.maximum(waited + home, anywhere - self.m * sum(self.more)))

    def _gone(self, c: Floats) -> Floats:
        """Idle time from there on, where the path has been on the first place until then: it leaves the W of the output
        layer, and p of the shorter B and W, to that place, or one less of these if it comes back."""
        pair = self.less[1] + self.less[2]
        return self._after(c, pair) + self.last * pair + self.less[1] - self.more[2]

    def _start(self, q: Floats) -> Floats:
        """Idle time before the first backward of place q, which has come down from the first place or the second, or
        waits for its forward."""
        f, b, missing = self.f, self.b, self.missing
        second = np.maximum(missing, 1) * f + (q - 1) * b - _over(np.minimum(q, missing), np.ones_like(q)) * f
        first = missing * f + q * b - np.minimum(q, missing) * f + self.more[0] + self.more[1]
        own = np.maximum(q, missing) * f
        return np.asarray(np.maximum(own, np.where(q > 0, np.maximum(first, second), own)))

    def _until(self, c: Floats, turn: Floats) -> Floats:
        """Idle time until the path is at place c with its last backwards still to come: it began there; or on the last
        place and came down the V; or on a lower one, where it may also have come down to, and went up with the last
        backwards of the second chunk, from `turn` on."""
        f, b, w, last = self.f, self.b, self.w, self.last
        down, end = np.maximum(f - b, 0) - w, self._start(last)
        found = np.maximum(self._start(c), end + (last - c) * down)
        found = np.maximum(found, end + last * down + self._up(c))
        low = np.maximum(self._start(turn), end + (last - turn) * down + np.maximum(down, 0)) + w * (c - turn)
        return np.asarray(np.where((c >= turn) & (turn > self.missing), np.maximum(found, low), found))

    def _up(self, c: Floats) -> Floats:
        """Idle time on the way from the first place to c with the last backward of the second chunk."""
        return np.asarray(self.w * (_over(c, self.missing + 1) - np.minimum(c, self.missing)))

    def _after(self, c: Floats, pair: Floats | float = 0.0) -> Floats:
        """Idle time from there on: the path goes with backwards of the first chunk to a place that has weight gradients
        left; `pair` less if that is the first place."""
        missing, found = self.missing, 0 * self.f
        skipped = _over(c, missing)
        for z in (np.minimum(end, c) for end in (0 * missing, skipped, missing)):
            weights = _over(c, np.maximum(z, missing)) + _over(skipped, z)
            found = np.maximum(found, (c - z) * self.b - weights * self.w - np.where(z == 0, pair, 0.0))
        return np.asarray(found)


IDLE: dict[str, Idle] = {"zb-h1": zb_h1, "zb-h2": zb_h2, "zb-v": zb_v}
"""By schedule."""


def _over(value: Floats, bound: Floats) -> Floats:
    """By how much a value is over a bound."""
    return np.asarray(np.maximum(value - bound, 0))
