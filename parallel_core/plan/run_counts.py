"""Operations of a rank counted from its runs (`schedule.runs`), at those positions where a count changes its course.

Between them every number is linear in the repeats of a run, and so are sums of them: no peak lies there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind
from parallel_core.schedule.runs import Pass, Run

Ints = NDArray[np.int64]
_MARGIN = 3
"""Repeats next to a bend that are counted, too: operations of the same repeat come before and after it."""


class At(NamedTuple):
    """Positions in a program: run, repeat, and place in its pattern."""

    run: Ints
    repeat: Ints
    order: Ints


class RunCounts:
    """Counts of one program."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = tuple(runs)
        passes = dict.fromkeys(one for run in self._runs for one in run.passes)
        self._order = {
            one: np.array([run.passes.index(one) if one in run.passes else -1 for run in self._runs]) for one in passes
        }
        self._before: dict[Pass, Ints] = {}
        """By pass: its operations before each run, and of all."""
        for one in passes:
            counts = accumulate((run.times * (one in run.passes) for run in self._runs), initial=0)
            self._before[one] = np.array([*counts], np.int64)
        lengths = accumulate((run.times * len(run.passes) for run in self._runs), initial=0)
        self._first = np.array([*lengths], np.int64)
        self._length = np.array([len(run.passes) for run in self._runs])

    def backward(self, stage: int) -> Pass:
        """The backward of a stage: B or BW."""
        return next((kind, stage) for kind in (Kind.B, Kind.BW) if (kind, stage) in self._order)

    def done(self, one: Pass, at: At, own: bool) -> Ints:
        """Operations of a pass before each position; `own`: with the one there."""
        order = self._order[one][at.run]
        inside = at.repeat + (order <= at.order if own else order < at.order)
        return np.asarray(self._before[one][at.run] + np.where(order < 0, 0, inside))

    def find(self, one: Pass, number: Ints) -> At:
        """Positions of the operations of a pass with these numbers, from 0."""
        before = self._before[one]
        run = np.searchsorted(before, number, side="right") - 1
        return At(run, number - before[run], self._order[one][run])

    def named(self, at: At) -> list[Pass]:
        """The pass at each position."""
        return [self._runs[run].passes[order] for run, order in zip(at.run.tolist(), at.order.tolist(), strict=True)]

    def rest(self, stages: Sequence[int], at: At) -> Ints:
        """`held_counts.Moment.rest` at each position."""
        last, level = np.full(len(at.run), -1), np.zeros(len(at.run), np.int64)
        for stage in stages:
            one = next((kind, stage) for kind in (Kind.W, Kind.BW) if (kind, stage) in self._order)
            count = self.done(one, at, False)
            there = self.find(one, np.maximum(count - 1, 0))
            index = self._first[there.run] + there.repeat * self._length[there.run] + there.order
            later = (count > 0) & (index > last)
            last, level = np.where(later, index, last), np.where(later, np.minimum(count, 2), level)
        return level

    def bends(self, one: Pass) -> Ints:
        """Numbers of the operations of a pass on both sides of each boundary between runs."""
        before = self._before[one]
        near = np.unique(before[:, None] + np.arange(-1, 2))
        return near[(near >= 0) & (near < before[-1])]

    def sampled(self, links: Iterable[Receiving], margin: int) -> At:
        """All positions near the ends of runs, and near messages before which the run of their sender changes."""
        wide = margin + _MARGIN
        near: list[set[int]] = [{0, run.times - 1} for run in self._runs]
        for link in links:
            found = self.find(link.taken, link.peer.bends(link.sent))
            for run, repeat in zip(found.run.tolist(), found.repeat.tolist(), strict=True):
                near[run].add(repeat)
        positions = [
            (number, repeat, order)
            for number, (run, marks) in enumerate(zip(self._runs, near, strict=True))
            for repeat in sorted({mark + i for mark in marks for i in range(-wide, wide + 1)})
            if 0 <= repeat < run.times
            for order in range(len(run.passes))
        ]
        return At(*np.array(positions, np.int64).T)

    def unproven(self, link: Receiving, same: Sequence[Receiving], at: At) -> Ints:
        """Messages sent back on a link before each position that nothing received from the same peer acknowledges
        (`schedule.send_completion`); `same`: all links from it."""
        sends = {other.sent for other in same}
        found = self.done(link.sending, at, False)
        for other in same:
            received = self.done(other.taken, at, True)
            found = found - other.peer.acknowledged(link.returned, other.sent, sends, received)
        return found

    def acknowledged(self, returned: Pass, sent: Pass, sends: Set[Pass], number: Ints) -> Ints:
        """Messages taken for `returned` that the first `number` messages of `sent` acknowledge: each is acknowledged by
        the next message of any of `sends`."""
        before, each, late = np.array([*self._acknowledging(returned, sent, sends)], np.int64).T
        there = self.find(sent, np.maximum(number - 1, 0))
        inside = each[there.run] * (there.repeat + 1 - late[there.run])
        return np.asarray(np.where(number > 0, before[there.run] + inside, 0))

    def _acknowledging(self, returned: Pass, sent: Pass, sends: Set[Pass]) -> Iterator[tuple[int, bool, bool]]:
        """By run: (messages that `sent` has acknowledged when it has come there first, whether it acknowledges those of
        each repeat, whether only in the next one)."""
        total = owed = 0
        for run in self._runs:
            following = [one for one in run.passes if one in sends]
            taken = returned in run.passes
            if not following:
                owed += run.times * taken
                yield total, False, False
                continue
            rest = run.passes[run.passes.index(returned) :] if taken else ()
            late = taken and not sends & {*rest}
            each = taken and next(one for one in (*rest, *following) if one in sends) == sent
            total += owed * (following[0] == sent)
            yield total, each, late
            total, owed = total + each * (run.times - late), int(late)


class Receiving(NamedTuple):
    """A link between a stage and one of another rank, `peer`: `sent` there is needed by `taken` here, and what
    `sending` makes here is needed by `returned` there."""

    peer: RunCounts
    sent: Pass
    taken: Pass
    sending: Pass
    returned: Pass

    @classmethod
    def on(cls, stage: int, step: int, own: RunCounts, peer: RunCounts) -> Receiving:
        """The link between `stage` and `stage` + `step`, which is on `peer`."""
        forward, forward_there = (Kind.F, stage), (Kind.F, stage + step)
        back, back_there = own.backward(stage), peer.backward(stage + step)
        if step < 0:
            return cls(peer, forward_there, forward, back, back_there)
        return cls(peer, back_there, back, forward, forward_there)
