"""1F1B with flush (Narayanan et al. 2021, PipeDream-Flush): warm-up, then one forward one backward, then drain."""

from __future__ import annotations

from parallel_core.schedule.ir import Kind


def program(stage: int, stages: int, micro_batches: int) -> list[tuple[Kind, int]]:
    """Compute operations of `stage` in order, as (kind, index of the micro-batch within its replica).

    Stage s runs ahead by p - 1 - s forwards, just enough to be busy until the first gradient comes back.
    """
    warm_up = min(stages - 1 - stage, micro_batches)
    steady = micro_batches - warm_up
    ops = [(Kind.F, i) for i in range(warm_up)]
    for i in range(steady):
        ops += [(Kind.F, warm_up + i), (Kind.BW, i)]
    return ops + [(Kind.BW, i) for i in range(steady, micro_batches)]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once: min(p - s, m)."""
    return min(stages - stage, micro_batches)
