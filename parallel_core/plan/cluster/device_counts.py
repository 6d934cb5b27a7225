"""Numbers of a cluster's devices that a plan can use: heads, layers and batch must divide, and hosts are used whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parallel_core.plan.cluster import memory
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.rules import divisors

if TYPE_CHECKING:
    from parallel_core.plan.cluster.search import Space

MOST_FEWER = 4
"""Numbers below a cluster's own that a search tries."""
LEAST_SHARE = 0.75
"""Least share of a cluster's devices that a search tries: with fewer, even a plan without a bubble is hardly faster."""


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


def fewer(job: Job, cluster: Cluster, space: Space) -> tuple[int, ...]:
    """The largest counts below the cluster's own at which a pipeline is possible, at least LEAST_SHARE of it."""
    below = [n for n in counts(job, cluster, space, 2) if LEAST_SHARE * cluster.devices <= n < cluster.devices]
    return tuple(below[::-1][:MOST_FEWER])
