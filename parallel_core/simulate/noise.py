"""Cost of noise: ranks that wait for each other wait for whichever is slow this time.

Averages over single devices miss this. An operation of mean duration t is drawn from a gamma distribution with that
mean and variance q x t: two short operations have as many hiccups as one of their total length. The average increase of
the step over some draws is the cost of waiting.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import NormalDist

import numpy as np

from parallel_core.analysis.rows import last_end
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.shared_host import Sharing, simulate_shared

_NORMAL = NormalDist()
_FEWEST, _MOST, _OPERATIONS = 2, 8, 2_000
"""Fewest and most draws, and operations drawn in total."""


def expected_largest(count: int) -> float:
    """Expected maximum of `count` standard normals (Blom 1958's approximation of that order statistic); 0 for one."""
    return _NORMAL.inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def lag(seconds: float, times: int, ranks: int, noise: float) -> float:
    """Seconds that `ranks` wait in total for the slowest of them if they meet `times` times in work of `seconds`."""
    return math.sqrt(noise * seconds * times) * expected_largest(ranks)


class _Draws:
    """Draws the work of operations; `excess[rank]`: ns by which the rank's work exceeded its mean."""

    def __init__(self, noise_ns: float, calm: Collection[Kind], seed: int) -> None:
        self._noise, self._calm = noise_ns, calm
        self._gamma = np.random.default_rng(seed).gamma
        self.excess: dict[int, float] = {}

    def __call__(self, rank: int, op: Op, work: float) -> float:
        if work <= 0 or op.kind in self._calm:
            return work
        drawn = self._noise * float(self._gamma(work / self._noise))
        self.excess[rank] = self.excess.get(rank, 0.0) + drawn - work
        return drawn


def factor(
    schedule: Schedule, costs: HostCosts, sharing: Sharing, noise: float, calm: Collection[Kind] = (), parts: int = 1
) -> float:
    """Slowdown of the programs by noise of `noise` seconds. Operations of `calm` kinds, inside which ranks wait for
    each other, already include it. `parts`: number of factors that the caller averages, so that each needs fewer
    draws."""
    ranks = schedule.pipeline_ranks
    if noise <= 0 or ranks < 2:
        return 1.0
    plain = last_end(simulate_shared(schedule, costs, sharing))
    times = max(1, max(_FEWEST, min(_MOST, _OPERATIONS // sum(map(len, schedule.programs)))) // parts)
    longer = 0.0
    for seed in range(times):
        draws = _Draws(noise * 1e9, calm, seed)
        took = last_end(simulate_shared(schedule, costs, sharing, draws))
        longer += took - plain - _by_chance(draws, sharing)
    return 1.0 + max(0.0, longer / times / plain)


def _by_chance(draws: _Draws, sharing: Sharing) -> float:
    """Mean nanoseconds by which devices had more work than expected: 0 over many draws, so it is subtracted."""
    devices = {device for own in sharing.devices for device in own}
    return sum(excess * len(sharing.devices[rank]) for rank, excess in draws.excess.items()) / len(devices)
