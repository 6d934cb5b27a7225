"""GPipe (Huang et al. 2019): all micro-batches forward, then all backward; every stage keeps all of them."""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order."""
    return [[Op(kind, stage, i) for kind in (Kind.F, Kind.BW) for i in range(micro_batches)] for stage in range(pp)]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once."""
    return micro_batches
