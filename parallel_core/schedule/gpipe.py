"""GPipe (Huang et al. 2019): all micro-batches forward, then all backward; every stage keeps all of them."""

from __future__ import annotations

from parallel_core.schedule.ir import Kind


def program(stage: int, stages: int, micro_batches: int) -> list[tuple[Kind, int]]:
    """Compute operations of `stage` in order, as (kind, index of the micro-batch within its replica)."""
    return [(kind, i) for kind in (Kind.F, Kind.BW) for i in range(micro_batches)]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once."""
    return micro_batches
