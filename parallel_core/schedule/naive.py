"""Naive layer-wise model parallelism: one micro-batch at a time, so only one stage works at any moment."""

from __future__ import annotations

from parallel_core.schedule.ir import Kind


def program(stage: int, stages: int, micro_batches: int) -> list[tuple[Kind, int]]:
    """Compute operations of `stage` in order, as (kind, index of the micro-batch within its replica).

    A micro-batch goes forward through all stages and back before the first stage takes the next one; on each stage
    that is simply F, BW, F, BW, ...
    """
    return [(kind, i) for i in range(micro_batches) for kind in (Kind.F, Kind.BW)]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once."""
    return 1
