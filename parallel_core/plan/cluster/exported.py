"""Found plans as plain rows for JSON and CSV: words, and numbers in base units."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.search import SearchResult
from parallel_core.plan.cluster.verdict import utilisation


def rows(job: Job, cluster: Cluster, found: SearchResult, most: int) -> list[dict[str, Any]]:
    """The fastest plan of each layout, fastest first: its fields, seconds a step, bytes of the fullest rank, MFU."""
    out = []
    for i in found.leaders(most):
        plan, seconds = found.plans.row(i), float(found.seconds[i])
        share = utilisation(job, cluster, plan, seconds)
        out.append(
            {"label": found.label(i), **asdict(plan), "step_s": seconds, "peak_bytes": int(found.peak[i]), "mfu": share}
        )
    return out
