"""1F1B with flush (Narayanan et al. 2021a, PipeDream-Flush): warm-up, then one forward one backward, then drain."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order.

    Stage s runs ahead by p - 1 - s forwards, just enough to be busy until the first gradient comes back.
    """
    return [
        alternate(
            [Op(Kind.F, stage, i) for i in range(micro_batches)],
            [Op(Kind.BW, stage, i) for i in range(micro_batches)],
            pp - 1 - stage,
        )
        for stage in range(pp)
    ]


def alternate(forwards: Sequence[Op], backwards: Sequence[Op], warm_up: int) -> list[Op]:
    """`warm_up` forwards (all, if there are fewer), then forwards and backwards alternately, then the rest."""
    warm_up = min(warm_up, len(forwards))
    steady = len(forwards) - warm_up
    pairs = zip(forwards[warm_up:], backwards[:steady], strict=True)
    return [*forwards[:warm_up], *(op for pair in pairs for op in pair), *backwards[steady:]]


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once: min(p - s, m)."""
    return min(stages - stage, micro_batches)
