"""A place's program as runs of one repeated pattern: its ramps and its steady state, however many micro-batches.

A program of n micro-batches has O(n) operations but a handful of runs, so what is counted from runs takes as long for a
pipeline of a thousand stages as for one of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from parallel_core.schedule.ir import Kind, Op

Pass = tuple[Kind, int]
"""A kind of compute operation and its stage."""


class Run(NamedTuple):
    """The pattern `passes` (each at most once), `times` times. Each operation takes its pass's next micro-batch."""

    times: int
    passes: tuple[Pass, ...]


def operations(runs: Iterable[Run]) -> list[Op]:
    """The operations of the runs in order."""
    count: Counter[Pass] = Counter()
    made = []
    for times, passes in runs:
        for _ in range(times):
            for one in passes:
                made.append(Op(*one, count[one]))
                count[one] += 1
    return made


def limited(runs: Iterable[Run], micro_batches: int) -> list[Run]:
    """The runs without the operations of micro-batches from `micro_batches` on; none is empty."""
    count: Counter[Pass] = Counter()
    found: list[Run] = []
    for run in runs:
        found += _limited(run, {one: max(0, micro_batches - count[one]) for one in run.passes})
        count.update(dict.fromkeys(run.passes, run.times))
    return found


def _limited(run: Run, left: dict[Pass, int]) -> Iterator[Run]:
    """Cuts a run where one of its passes has no micro-batches `left`."""
    for begin, end in pairwise(sorted({0, run.times, *(min(times, run.times) for times in left.values())})):
        passes = tuple(one for one in run.passes if left[one] > begin)
        if passes:
            yield Run(end - begin, passes)
