"""Numbers of a cluster's devices that a plan can use: heads, layers and batch must divide, and hosts are used whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from parallel_core.plan.cluster import memory
from parallel_core.plan.cluster.efficiency import fitted
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import PRECISIONS
from parallel_core.rules import divisors

if TYPE_CHECKING:
    from parallel_core.plan.cluster.search import Space

ALL_OF = 12
"""Where a plan can have this many smaller numbers of devices at most, all of them are tried."""
MOST_FEWER = 4
"""Numbers of devices for other pipelines that a search tries below a cluster's own."""
LEAST_SHARE = 0.75
"""Least share of a cluster's devices for these: with fewer, even a plan without a bubble is hardly faster, unless it is
the links that are slow."""


def counts(job: Job, cluster: Cluster, space: Space, least_stages: int = 1) -> list[int]:
    """Device counts that any plan with at least so many stages can have, ascending: any number within a host, else
    whole hosts. They are few, since heads, layers and batch must divide."""
    whole = (1, *range(2, cluster.per_host), *range(cluster.per_host, cluster.devices, cluster.per_host))
    able = np.array(sorted({*(n for n in whole if n < cluster.devices), cluster.devices}))
    most = min(space.most_pp, job.model.layers)
    stages = [pp for pp in range(least_stages, most + 1) if memory.even(job.model.layers, pp)]
    ways = [tp for tp in job.model.tensor_widths if tp <= space.most_tp]
    made = np.unique(np.multiply.outer(np.array(stages, np.int64), ways))
    return [int(n) for n in np.intersect1d(able, np.multiply.outer(made, divisors(job.batch)))]


def fewer(job: Job, cluster: Cluster, space: Space, best: float = inf) -> tuple[int, ...]:
    """Counts below the cluster's own that may be faster than `best` seconds a step, largest first: the largest ones at
    which a pipeline is possible, at least LEAST_SHARE of it; and, as fewer hosts are faster where the links between
    them are slow, those of two thirds of its hosts, of two thirds of these, and so on down to a single device. All of
    them where they are few."""
    pipelines = [n for n in counts(job, cluster, space, 2) if LEAST_SHARE * cluster.devices <= n < cluster.devices]
    every = np.array(counts(job, cluster, space))
    smaller = every[every < cluster.devices]
    few = [int(n) for n in smaller] if len(smaller) <= ALL_OF else []
    able = [*few, *(int(every[every <= n].max(initial=0)) for n in _thirds(cluster))]
    least = _flop_seconds(job, cluster, space)
    return tuple(sorted({*pipelines[::-1][:MOST_FEWER], *(n for n in able if n and least / n < best)}, reverse=True))


def _thirds(cluster: Cluster) -> Iterator[int]:
    """Two thirds of the hosts, two thirds of these ..., and of the last host's devices."""
    n, whole = cluster.devices, cluster.per_host
    while n > 1:
        n = n // whole * 2 // 3 * whole if n > whole else n * 2 // 3
        n = n or whole
        yield n


def _flop_seconds(job: Job, cluster: Cluster, space: Space) -> float:
    """Seconds that one device takes at least, for the products with the layers' matrices alone."""
    peak = cluster.device.half if PRECISIONS[0] in space.precisions else cluster.device.single
    forward = 2.0 * job.tokens * job.model.layers * job.model.layer_matrices
    return forward * (2 + job.trained) / (peak * fitted().matrix)
