"""Specs reduced to what a prediction depends on: equal for runs that share it, so that it is computed once."""

from __future__ import annotations

from parallel_core.outline.recompute import recomputed
from parallel_core.spec import RunSpec

_DEFAULT = RunSpec()
_WITHOUT_STEP = (
    "warmup_steps",
    "lr",
    "lr_schedule",
    "lr_warmup_steps",
    "lr_final",
    "eval_every",
    "eval_samples",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "seed",
    "loss_scale",
    "loss_scale_window",
    "loss_scale_growth",
    "loss_scale_backoff",
    "corpus",
    "weights",
    "checkpoint_every",
    "keep",
    "max_minutes",
    "stop_on_nan",
    "other_data",
)
"""Fields of `train` that change no prediction of a step, neither its time nor its memory."""


def of_step(spec: RunSpec) -> RunSpec:
    """The spec with the default of every field that the time of a step does not depend on: equal for runs that differ
    only in learning rate or seed. That gradients are clipped matters, the bound does not."""
    clip = None if spec.train.clip_norm is None else _DEFAULT.train.clip_norm
    return _reduced(spec, clip_norm=clip)


def of_memory(spec: RunSpec) -> RunSpec:
    """As `of_step`, for what the memory of a rank (`peak.by_stage`) does not depend on."""
    return _reduced(spec, clip_norm=_DEFAULT.train.clip_norm, clip=_DEFAULT.train.clip)


def _reduced(spec: RunSpec, **same: object) -> RunSpec:
    same |= {name: getattr(_DEFAULT.train, name) for name in _WITHOUT_STEP}
    if spec.parallel.flushes:  # else the number of steps bounds how many micro-batches are under way
        same["steps"] = _DEFAULT.train.steps
    if spec.train.momentum:  # without a momentum no buffer of it is kept
        same["momentum"] = _DEFAULT.train.momentum
    train = spec.train.model_copy(update=same)
    return spec.model_copy(update={"train": train, "trace": _DEFAULT.trace, "inject": ()})


def same_sample(a: RunSpec, b: RunSpec) -> bool:
    """Whether a sample costs both runs the same work, so that only batch, split and devices decide on samples/s."""
    return _per_sample(a) == _per_sample(b)


def _per_sample(spec: RunSpec) -> tuple[object, ...]:
    same = {name: getattr(_DEFAULT.train, name) for name in ("global_batch", "steps", "clip")}
    split, train = spec.parallel, of_step(spec).train.model_copy(update=same)
    return spec.model, train, split.recompute, recomputed(split, spec.model.units()), spec.inject
