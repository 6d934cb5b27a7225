"""Which runs are to compute the same, so that a difference between their losses, or their steps, means something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.runs.form.spec_fields import ENTRIES
from parallel_core.analysis.quantities import listed_text
from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import recomputed
from parallel_core.rules.train import OPTIMIZER_FIELDS
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec, TrainSpec

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
        "max_minutes",
        "stop_on_nan",
        "other_data",
    }
)
"""Training fields that may differ: for how long, where and how exactly the same updates are computed."""
APART = frozenset({"global_batch", "clip", "clip_norm", "eval_every", "eval_samples"})
"""Training fields that `same_updates` compares by rules of their own."""
TOLERANCES = {"fp32": 1e-5, "fp64": 1e-12, "bf16": 1e-2, "fp16": 2e-3}
"""Relative difference of losses up to which two runs of this precision count as equal."""
SAME_TRAINING = tuple(name for name in TrainSpec.model_fields if name not in FREE | APART)
"""Training fields that have to be equal, any new one included: the data, the start, and how far each update goes."""


def same_updates(a: RunSpec, b: RunSpec) -> bool:
    """Whether both runs are to compute the same updates.

    Each schedule without a flush has update rules of its own, by which an update may depend on the stages and their
    replicas, too (`_delays`); clipping gradients by stage gives other updates than clipping them all; and a batch norm
    normalises each micro-batch by itself.
    """
    if (a.model, a.train.global_batch) != (b.model, b.train.global_batch) or a.parallel.flushes != b.parallel.flushes:
        return False
    if a.train.clip_norm != b.train.clip_norm or _differing(a, b) or update_rules(a) != update_rules(b):
        return False
    if not a.parallel.flushes:
        return True
    pipelines = max(a.parallel.pp, b.parallel.pp) > 1
    return not pipelines or a.train.clip_norm is None or a.train.clip == b.train.clip == "global"


def _delays(spec: RunSpec) -> tuple[Any, ...]:
    """What decides which weights a micro-batch meets without a flush, and what is clipped together.

    2BW makes one update a step, W(t + 1) = W(t) - lr g(W(t - 1)), however a step is split (Narayanan et al. 2021a,
    section 3.1), so there only clipping depends on the stages. Elsewhere the stages, their replicas and the
    micro-batches decide; without a stash also what recomputes, from weights that are newer than the forward's.
    """
    split, train = spec.parallel, spec.train
    sync = TRAITS[split.schedule].sync
    if sync == "2bw":
        return split.schedule, None if train.clip_norm is None else _stages(spec)
    again = sync == "none" and split.recompute == "full"  # an attention core, all that `selective` repeats, has none
    rebuilt = recomputed(split, spec.model.units()) if again else frozenset()
    return split.schedule, split.copies, split.per_step, _stages(spec), rebuilt


def update_rules(spec: RunSpec) -> tuple[Any, ...]:
    """What of a split decides the updates, beside the training fields: equal for all that flush, unless batch norms see
    other samples together."""
    return _normed_apart(spec), *(() if spec.parallel.flushes else _delays(spec))


def _normed_apart(spec: RunSpec) -> int:
    """Into how many parts a batch is divided for batch norms, 0 without one: replicas join theirs, micro-batches do
    not."""
    return spec.parallel.micro_batches if outline_of(spec.model).batch_norm else 0


def _stages(spec: RunSpec) -> tuple[tuple[int, ...], ...]:
    return Layout.of(spec).stage_units


def same_work(a: RunSpec, b: RunSpec) -> bool:
    """Whether a step of either trains as many samples, so that the parts of one can be subtracted from the other's."""
    return a.train.global_batch == b.train.global_batch


def tolerance(a: RunSpec, b: RunSpec) -> float:
    """Relative difference of losses up to which the runs count as equal: that of the coarser precision of the two."""
    return max(TOLERANCES[a.train.precision], TOLERANCES[b.train.precision])


def why_not(base: RunSpec, others: Sequence[RunSpec]) -> str:
    """Why none of `others` is to compute the same as `base`, as a clause."""
    fields = list(dict.fromkeys(field for other in others for field in _differing(base, other)))
    named = [ENTRIES[f"train.{field}"].label for field in fields]
    if any(other.train.global_batch != base.train.global_batch for other in others):
        named.insert(0, "Batch")
    if any(other.model != base.model for other in others):
        named.insert(0, "Model")
    if not named and all(_normed_apart(other) != _normed_apart(base) for other in others):
        return "their batch norms see micro-batches of another size"
    if not named:
        return "they update by other rules"
    return f"they differ in {listed_text([label[:1].lower() + label[1:] for label in named])}"


def trained_differently(specs: Sequence[RunSpec]) -> list[str]:
    """The training fields of a recipe in which these runs differ: what decides the loss that they reach. Not the data,
    of which losses cannot be compared, nor how long they train."""
    apart = {"corpus", "eval_samples", "steps"}
    fields = {field for spec in specs for field in _differing(specs[0], spec) if field not in apart}
    fields |= {field for field in ("global_batch", "clip_norm") if len({getattr(s.train, field) for s in specs}) > 1}
    return sorted(fields)


def _differing(a: RunSpec, b: RunSpec) -> list[str]:
    """The training fields that differ and have to be equal: those of SAME_TRAINING, of which a constant rate has no
    end and an optimizer reads only its own; the number of steps, over all of which a rate decays; and the samples that
    are held out, if any."""
    decays = {a.train.lr_schedule, b.train.lr_schedule} != {"constant"}
    held_out = ["eval_samples"] if a.train.held_out != b.train.held_out else []
    names = [*SAME_TRAINING, "steps"] if decays else [name for name in SAME_TRAINING if name != "lr_final"]
    optimizers = {a.train.optimizer, b.train.optimizer}
    unread = {name for one, fields in OPTIMIZER_FIELDS.items() if one not in optimizers for name in fields}
    read = [name for name in names if name not in unread]
    return [*held_out, *(name for name in read if getattr(a.train, name) != getattr(b.train, name))]
