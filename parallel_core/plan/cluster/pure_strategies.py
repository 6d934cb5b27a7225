"""The best plan of each pure strategy compared with the best combination, and why each one loses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_core.analysis.quantities import count_text, ratio_text
from parallel_core.plan.cluster import memory, search
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import RECOMPUTE, Plan, Plans, changed
from parallel_core.plan.cluster.verdict import Judged, judge
from parallel_core.rules import divisors


@dataclass(frozen=True)
class PureStrategy:
    """A pure strategy (`word`), its best or least bad plan, and how it compares with the best combination."""

    word: str
    judged: Judged
    sentence: str


def pure_strategies(job: Job, cluster: Cluster, together: float | None, space: search.Space) -> list[PureStrategy]:
    """DP, ZeRO, TP and PP alone, each as wide and with the recomputation and micro-batch that is fastest, by the
    schedules, the precision and the bytes a parameter of `space`. `together`: seconds of the best combination, None
    where nothing fits."""
    n, layers = cluster.devices, job.model.layers
    # A pure strategy may use fewer devices: as many as the batch, the heads or the layers divide into. Widest first.
    wide = [d for d in reversed(divisors(job.batch)) if 1 < d <= n and _fills(cluster, d)]
    tall = [t for t in reversed(job.model.tensor_widths) if 1 < t <= min(n, 64)]
    deep = [p for p in range(min(n, layers), 1, -1) if memory.even(layers, p)]
    kinds = {
        "DP": [Plan(dp=d) for d in wide],
        "ZeRO": [Plan(dp=d, zero=zero) for d in wide for zero in (1, 2, 3)],
        "TP": [Plan(tp=t, sequence_parallel=on) for t in tall for on in (False, True)],
        "PP": [Plan(pp=p, schedule=name, chunks=v) for p in deep for name, v in search.schedules(job, space, p)],
    }
    state, precision = space.states[0], space.precisions[0]
    out = []
    for word, bases in kinds.items():
        plans = [
            changed(base, micro_batch=size, recompute=kind, state=state, precision=precision)
            for base in bases
            for size in search.micro_batches(job.batch, base.dp)
            for kind in RECOMPUTE
        ]
        if plans:
            judged = judge(job, cluster, _best(job, cluster, plans), suggest=False)
            out.append(PureStrategy(word, judged, _sentence(judged, together, n)))
    return out


def _fills(cluster: Cluster, devices: int) -> bool:
    """Whether so many devices are within a host, whole hosts, or an equal part of the cluster."""
    return devices <= cluster.per_host or devices % cluster.per_host == 0 or cluster.devices % devices == 0


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
            f" {ratio_text(ratio)} the time of the best combination"
            if abs(ratio - 1) > 0.005
            else " As fast as any combination"
        )
        text += f", on {count_text(used)} of {count_text(devices)} devices." if used < devices else "."
    return text
