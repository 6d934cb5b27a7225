"""The levels of a network that a model is partitioned over, and the work of PipeDream's programme on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from parallel_core.plan.layer_graph import GraphError

MAX_WORKERS = 4096
MAX_WORK = 1.5e8
"""Most candidates, about 1 s of a core: ResNet-50 in hosts of 8, whose graph has 241 states, takes 1.2e8."""
MAX_LIMITED = 8 * MAX_WORK
"""Most candidates with a limit on memory, which needs several tables of the lower levels."""

_CALL = 3000
"""Candidates that take as long as the calls for one number of workers."""
_LAYER = 0.003
"""Candidates that take as long as one layer of one pair of states, before the first candidate."""
_PLACE = 7000
"""Candidates that take as long as counting the workers after a stage, for one place of it in its level."""


class Level(NamedTuple):
    """`workers` (or groups of the level below) connected at `bandwidth` bytes/s; the innermost level comes first."""

    workers: int
    bandwidth: float


def candidates(states: int, levels: Sequence[Level], layers: int, limited: bool = False) -> float:
    """Approximate number of candidates that take as long as `partition` for a graph with this many layers and states,
    the empty one included. `limited`: with a limit on memory, at most."""
    once, tables = _LAYER * layers * states**2, [1.0] * len(levels)
    if limited:
        once += places(levels)
        for depth in range(len(levels) - 1, 0, -1):  # a table for each share of later groups
            tables[depth - 1] = tables[depth] * _pairs(levels[depth])
    return once + sum(map(math.prod, zip(tables, work(states, levels), strict=True)))


def places(levels: Sequence[Level]) -> float:
    """Candidates that take as long as finding out which tables are needed, with a limit on memory."""
    return _PLACE * math.prod(map(_pairs, levels[1:])) if len(levels) > 1 else 0.0


def _pairs(level: Level) -> float:
    """Numbers of a level's workers in a stage, and in those up to it."""
    return level.workers * (level.workers + 1) / 2


def work(states: int, levels: Sequence[Level]) -> list[float]:
    """Candidates in a table of each level."""
    cut = states * (states / 4 + 3) if states > 2 else 0.0  # 3: each state's row of candidates is a loop of its own
    firsts = zip(first_states(states, levels), levels, strict=True)
    return [f * level.workers * (level.workers / 2 * cut + _CALL) for f, level in firsts]


def first_states(states: int, levels: Sequence[Level]) -> list[int]:
    """Number of first states of each level: a higher level may begin where any state of the level below ends."""
    return [states] * (len(levels) - 1) + [1]


def check(levels: Sequence[Level]) -> None:
    """Raises GraphError if a network is not physical or has too many workers."""
    if not levels:
        raise GraphError("levels: the network needs one level at least.")
    for i, level in enumerate(levels):
        if level.workers < 1:
            raise GraphError(f"levels.{i}.workers must be at least 1, got {level.workers}.")
        if not (level.bandwidth > 0 and math.isfinite(level.bandwidth)):
            raise GraphError(f"levels.{i}.bandwidth must be more than 0 bytes/s, got {level.bandwidth}.")
    if (total := math.prod(level.workers for level in levels)) > MAX_WORKERS:
        raise GraphError(f"levels: {total} workers; at most {MAX_WORKERS}.")
