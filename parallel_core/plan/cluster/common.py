"""One plan for several clusters: the split that all of them can run, with the least loss on the worst of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parallel_core.plan.cluster import search
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan, Plans


@dataclass(frozen=True)
class Shared:
    """The common plan on one of the clusters (with that cluster's number of replicas) and its seconds, and the
    cluster's own best plan and its seconds."""

    cluster: Cluster
    plan: Plan
    seconds: float
    own: Plan
    own_seconds: float

    @property
    def price(self) -> float:
        """Extra time of a step compared with the cluster's own best plan, as a share of that plan's time."""
        return self.seconds / self.own_seconds - 1


def shared(job: Job, clusters: list[Cluster], space: search.Space | None = None) -> list[Shared] | None:
    """The plan with the least largest `price`, for each cluster; replicas follow from each cluster's devices.

    None where some cluster cannot train the job at all, or no split is possible on all of them.
    """
    found = [search.search(job, cluster, space) for cluster in clusters]
    if not all(one.timed for one in found):
        return None
    own = [one.best()[0] for one in found]
    best = [float(one.seconds[i]) for one, i in zip(found, own, strict=True)]
    plans = _candidates(found)
    times = np.stack([search.evaluate(job, c, _scaled(plans, c))[2] for c in clusters])
    prices = np.where(np.isnan(times), np.inf, times) / np.array(best)[:, None]
    worst = prices.max(axis=0)
    if not np.isfinite(worst).any():
        return None
    i = int(np.argmin(worst))
    out = []
    for k, cluster in enumerate(clusters):
        plan = _scaled(plans.take(np.array([i])), cluster).row(0)
        out.append(Shared(cluster, plan, float(times[k, i]), found[k].plans.row(own[k]), best[k]))
    return out


def _candidates(found: list[search.SearchResult], most: int = 20_000) -> Plans:
    """The fastest plans of all clusters: the common plan is among the good ones of some cluster."""
    each = [one.plans.take(one.order[: most // len(found)]) for one in found]
    names = list(Plans.__dataclass_fields__)
    return Plans(*(np.concatenate([getattr(plans, name) for plans in each]) for name in names))


def _scaled(plans: Plans, cluster: Cluster) -> Plans:
    """The plans with as many replicas as the cluster has devices for. Where tp x pp does not divide the devices, dp is
    set to a count that `rules` refuses."""
    width = plans.tp * plans.pp
    whole = cluster.devices % width == 0
    dp = np.where(whole, cluster.devices // width, cluster.devices + 1.0)
    return replace(plans, dp=dp, zero=np.where(dp > 1, plans.zero, 0))
