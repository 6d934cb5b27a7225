"""Which runs are meant to compute the same, so that a difference of their losses says something."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.spec_fields import ENTRIES
from parallel_core.analysis.quantities import listed_text
from parallel_core.spec import RunSpec

TOLD = ("train.corpus", "train.seed", "train.lr", "train.weight_decay", "train.beta1", "train.beta2", "train.eps")
"""Fields that make another training of it: what is read, where it begins, and by how much each update moves it."""


def same_updates(a: RunSpec, b: RunSpec) -> bool:
    """Whether both are to compute the same: one without a flush updates by other rules than any other schedule, and
    stages that clip their own gradients take other steps than those that clip all."""
    if (a.model, a.train.global_batch) != (b.model, b.train.global_batch) or a.parallel.flushes != b.parallel.flushes:
        return False
    if a.train.clip_norm != b.train.clip_norm or _told_otherwise(a, b):
        return False
    if not a.parallel.flushes:
        return a.parallel.schedule == b.parallel.schedule
    pipelines = max(a.parallel.pp, b.parallel.pp) > 1
    return not pipelines or a.train.clip_norm is None or a.train.clip == b.train.clip == "global"


def why_not(base: RunSpec, others: Sequence[RunSpec]) -> str:
    """Of runs none of which is to compute what `base` does: why."""
    fields = list(dict.fromkeys(field for other in others for field in _told_otherwise(base, other)))
    if not fields:
        return "they update by other rules"
    named = [ENTRIES[field].label for field in fields]
    return f"they differ in {listed_text([label[:1].lower() + label[1:] for label in named])}"


def _told_otherwise(a: RunSpec, b: RunSpec) -> list[str]:
    """The fields of TOLD that differ."""
    return [field for field in TOLD if getattr(a.train, _leaf(field)) != getattr(b.train, _leaf(field))]


def _leaf(field: str) -> str:
    return field.partition(".")[2]
