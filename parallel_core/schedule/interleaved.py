"""Interleaved 1F1B (Narayanan et al. 2021b, section 2.2): each rank holds v stages, so that the bubble is v times
smaller.

Idle over busy is (p - 1) / (v m) for m a multiple of p and equal stages; every message is sent v times as often.
"""

from __future__ import annotations

from itertools import pairwise

from parallel_core.schedule.ir import Kind, Op
from parallel_core.schedule.one_f_one_b import alternate


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order; stage s is on place s % pp.

    Micro-batches go in rounds: a place runs the whole round through one chunk before it goes to the next chunk. The
    paper requires m to be a multiple of p, so that a round is p micro-batches; otherwise rounds are as equal as
    possible and none is shorter than p (unless m itself is), since a shorter one would starve the first place.
    """
    runs = rounds(pp, micro_batches)
    return [
        alternate(
            [Op(Kind.F, chunk * pp + place, i) for ids in runs for chunk in range(chunks) for i in ids],
            [Op(Kind.BW, chunk * pp + place, i) for ids in runs for chunk in reversed(range(chunks)) for i in ids],
            2 * (pp - 1 - place) + (chunks - 1) * len(runs[0]),
        )
        for place in range(pp)
    ]


def rounds(pp: int, micro_batches: int) -> list[range]:
    """Micro-batches cut into runs of p or a few more, the longer ones first."""
    count = max(1, micro_batches // pp)
    short, longer = divmod(micro_batches, count)
    edges = [i * short + min(i, longer) for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
