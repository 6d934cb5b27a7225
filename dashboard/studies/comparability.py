"""Which runs are to compute the same, so that a difference between their losses, or their steps, means something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.runs.spec_fields import ENTRIES
from parallel_core.analysis.quantities import listed_text
from parallel_core.spec import ParallelSpec, RunSpec, TrainSpec

FREE = frozenset(
    {
        "steps",
        "warmup_steps",
        "precision",
        "loss_scale",
        "loss_scale_window",
        "loss_scale_growth",
        "loss_scale_backoff",
        "device",
        "deterministic",
        "checkpoint_every",
        "keep",
    }
)
"""Training fields that may differ: how long, where and how exactly the same updates are computed."""
APART = frozenset({"global_batch", "clip", "clip_norm"})
"""Training fields that `same_updates` compares by rules of their own."""
SAME_TRAINING = tuple(name for name in TrainSpec.model_fields if name not in FREE | APART)
"""Training fields that have to be equal, any new one included: the data, the start, and how far each update goes."""


def same_updates(a: RunSpec, b: RunSpec) -> bool:
    """Whether both runs are to compute the same updates.

    Each schedule without a flush has update rules of its own, by which an update depends on the stages and their
    replicas, too; and clipping gradients by stage gives other updates than clipping them all.
    """
    if (a.model, a.train.global_batch) != (b.model, b.train.global_batch) or a.parallel.flushes != b.parallel.flushes:
        return False
    if a.train.clip_norm != b.train.clip_norm or _differing(a, b):
        return False
    if not a.parallel.flushes:
        return _delays(a.parallel) == _delays(b.parallel)
    pipelines = max(a.parallel.pp, b.parallel.pp) > 1
    return not pipelines or a.train.clip_norm is None or a.train.clip == b.train.clip == "global"


def _delays(split: ParallelSpec) -> tuple[Any, ...]:
    """What decides which weights a micro-batch meets without a flush, and what is clipped together."""
    return split.schedule, split.copies, split.per_step, split.widths, split.cuts


def same_work(a: RunSpec, b: RunSpec) -> bool:
    """Whether a step of either trains as many samples, so that the parts of one can be subtracted from the other's."""
    return a.train.global_batch == b.train.global_batch


def why_not(base: RunSpec, others: Sequence[RunSpec]) -> str:
    """Why none of `others` is to compute the same as `base`, as a clause."""
    fields = list(dict.fromkeys(field for other in others for field in _differing(base, other)))
    if not fields:
        return "they update by other rules"
    named = [ENTRIES[f"train.{field}"].label for field in fields]
    return f"they differ in {listed_text([label[:1].lower() + label[1:] for label in named])}"


def _differing(a: RunSpec, b: RunSpec) -> list[str]:
    """The fields of SAME_TRAINING that differ."""
    return [field for field in SAME_TRAINING if getattr(a.train, field) != getattr(b.train, field)]
