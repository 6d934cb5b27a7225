"""The best plan of each pure strategy compared with the best combination, and why each one loses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_core.analysis.quantities import count_text, ratio_text
from parallel_core.plan.cluster import search
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import RECOMPUTE, Plan, Plans, changed
from parallel_core.plan.cluster.verdict import Judged, judge
from parallel_core.rules import divisors

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class PureStrategy:
    """A pure strategy (`word`), its best or least bad plan, and how it compares with the best combination."""

    word: str
    judged: Judged
    sentence: str


def pure_strategies(
    job: Job, cluster: Cluster, together: float | None, state: int, precision: str
) -> list[PureStrategy]:
    """DP, ZeRO, TP and PP alone, each with any recomputation and micro-batch size. `together`: seconds of the best
    combination, None where nothing fits."""
    n, layers = cluster.devices, job.model.layers
    # A pure strategy may use fewer devices: as many as the batch, the heads or the layers divide into.
    wide = max(d for d in divisors(n) if job.batch % d == 0)
    tall = max(t for t in divisors(job.model.heads) if t <= min(n, 64))
    deep = max(p for p in range(1, min(n, layers) + 1) if layers % p == 0)
    kinds = {
        "DP": [Plan(dp=wide)] if wide > 1 else [],
        "ZeRO": [Plan(dp=wide, zero=zero) for zero in (1, 2, 3)] if wide > 1 else [],
        "TP": [Plan(tp=tall, sequence_parallel=on) for on in (False, True)] if tall > 1 else [],
        "PP": [Plan(pp=deep, schedule=name) for name in ("1f1b", "zb-h1")] if deep > 1 else [],
    }
    out = []
    for word, bases in kinds.items():
        plans = [
            _with(base, size, kind, state, precision) for base in bases for size in MICRO_BATCHES for kind in RECOMPUTE
        ]
        if plans:
            judged = judge(job, cluster, _best(job, cluster, plans), suggest=False)
            out.append(PureStrategy(word, judged, _sentence(judged, together, n)))
    return out


def _with(plan: Plan, size: int, recompute: str, state: int, precision: str) -> Plan:
    return changed(plan, micro_batch=size, recompute=recompute, state=state, precision=precision)


def _best(job: Job, cluster: Cluster, plans: list[Plan]) -> Plan:
    """The fastest plan that fits; else the one with least memory among those that can be built; else the first."""
    _, peak, _, order = search.evaluate(job, cluster, Plans.of(plans))
    if len(order):
        return plans[int(order[0])]
    return plans[0] if np.isnan(peak).all() else plans[int(np.nanargmin(peak))]


def _sentence(judged: Judged, together: float | None, devices: int) -> str:
    if judged.sentences:
        return judged.sentences[0]
    used = judged.plan.devices
    text = f"Fits: {judged.room}."
    if judged.seconds and together:
        ratio = judged.seconds / together
        text += (
            f" {ratio_text(ratio)} the time of the best combination" if ratio > 1.005 else " As fast as any combination"
        )
        text += f", on {count_text(used)} of {count_text(devices)} devices." if used < devices else "."
    return text
