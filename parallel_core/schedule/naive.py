"""Naive layer-wise model parallelism: one micro-batch at a time, so only one stage works at any moment."""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order.

    A micro-batch goes forward through all stages and back before the first stage takes the next one; on each stage
    that is simply F, BW, F, BW, ...
    """
    return [[Op(kind, stage, i) for i in range(micro_batches) for kind in (Kind.F, Kind.BW)] for stage in range(pp)]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once."""
    return 1
