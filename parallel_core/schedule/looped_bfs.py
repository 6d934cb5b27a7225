"""Looped breadth-first (Lamy-Poirier 2023): GPipe over v chunks a rank; all micro-batches pass one chunk, then the
next.

Idle over busy is (p - 1) / (v m) for m >= p and equal stages, as for interleaved; every stage keeps all micro-batches.
"""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order; stage s is on place s % pp."""
    return [
        [Op(Kind.F, stage, i) for stage in range(place, pp * chunks, pp) for i in range(micro_batches)]
        + [Op(Kind.BW, stage, i) for stage in reversed(range(place, pp * chunks, pp)) for i in range(micro_batches)]
        for place in range(pp)
    ]
