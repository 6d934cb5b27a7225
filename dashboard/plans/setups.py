"""A model and a cluster from form values: a preset, with some of its values replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from parallel_core.plan.cluster.hardware import GIB, Cluster, clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.search import SearchResult, Space, search

SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq")
"""Fields of a model that a form may replace."""
RATES = {"half": 1e12, "bandwidth": 1e9, "link": 1e9, "network": 1e9, "memory": GIB, "reserved": GIB}
"""Fields of a cluster or its device that a form may replace -> the form's unit in SI units or bytes."""
ON_DEVICE = ("half", "bandwidth", "memory")


class Setup(NamedTuple):
    job: Job
    cluster: Cluster


def model_of(values: Mapping[str, Any]) -> Transformer:
    """The preset `model` with replaced sizes. Sizes that depend on a replaced one follow it unless given too."""
    base = presets()[values["model"]]
    own = {name: values[name] for name in SIZES if values.get(name) is not None}
    if not own:
        return base
    if "hidden" in own:
        own.setdefault("ffn", 4 * own["hidden"] if not base.gated else base.ffn * own["hidden"] // base.hidden)
    if "heads" in own and base.kv_heads == base.heads:
        own.setdefault("kv_heads", own["heads"])
    return replace(base, name="Own model", source="", **own)


def cluster_of(values: Mapping[str, Any]) -> Cluster:
    """The preset `cluster` with replaced values; fewer devices than a host has are a single host."""
    base = clusters()[values["cluster"]]
    own = {name: values[name] * unit for name, unit in RATES.items() if values.get(name) is not None}
    device = replace(base.device, **{name: own.pop(name) for name in ON_DEVICE if name in own})
    count = values.get("devices") or base.devices
    asked = values.get("per_host")
    per_host = min(base.per_host, count) if asked is None else asked
    return replace(base, device=device, devices=count, per_host=per_host, **own)


@lru_cache(maxsize=6)
def searched(job: Job, cluster: Cluster, space: Space) -> SearchResult:
    """The result of a search; cached because a page requests its parts one by one."""
    return search(job, cluster, space)
