"""One plan for several clusters: the split that all of them can run and that costs the worst of them least."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parallel_core.plan.cluster import search
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan, Plans


@dataclass(frozen=True)
class Shared:
    """On one of the clusters: the common plan with that cluster's replicas, its seconds, those of the cluster's own
    best plan, and that plan."""

    cluster: Cluster
    plan: Plan
    seconds: float
    own: Plan
    own_seconds: float

    @property
    def price(self) -> float:
        """How much longer a step takes than with the cluster's own best plan, as a share of it."""
        return self.seconds / self.own_seconds - 1


def shared(job: Job, clusters: list[Cluster], space: search.Space | None = None) -> list[Shared] | None:
    """The plan whose largest price is least, on each cluster; replicas follow from each one's devices. None where some
    cluster can train nothing, or no split suits all."""
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


def _candidates(found: list[search.Found], most: int = 20_000) -> Plans:
    """The fastest plans of every cluster together: the common one is among some cluster's good ones."""
    each = [one.plans.take(one.order[: most // len(found)]) for one in found]
    names = list(Plans.__dataclass_fields__)
    return Plans(*(np.concatenate([getattr(plans, name) for plans in each]) for name in names))


def _scaled(plans: Plans, cluster: Cluster) -> Plans:
    """With as many replicas as the cluster has room for; a split that does not divide it keeps a count that rules
    refuse."""
    width = plans.tp * plans.pp
    whole = cluster.devices % width == 0
    dp = np.where(whole, cluster.devices // width, cluster.devices + 1.0)
    return replace(plans, dp=dp, zero=np.where(dp > 1, plans.zero, 0))
