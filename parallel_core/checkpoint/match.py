"""Whether a run can begin from a checkpoint: what of its spec must be as it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from parallel_core.analysis.quantities import plural_text
from parallel_core.checkpoint.manifest import CheckpointError, Manifest
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec

NOT_OF_WEIGHTS = ("train.precision", "train.optimizer", "train.momentum", "model.dropout", "model.attention")
"""Fields that a run which starts from parameter values alone may set freely: no parameter depends on them."""


def mismatches(
    saved: Mapping[str, Any], spec: RunSpec, step: int, scalars: Mapping[str, float] = MappingProxyType({})
) -> dict[str, str]:
    """Why a run of `spec` cannot resume after step `step` of one of the spec `saved`: message by dotted field.

    Model, precision and optimizer must be the same; layout, data and optimizer settings may change, but a momentum
    cannot begin where none was saved. If stages have made different numbers of updates (according to `scalars` or the
    schedule), they must keep the same layers.
    """
    out = _other_fields(saved, spec)
    if "train.optimizer" not in out and _begins_momentum(saved.get("train", {}), spec):
        out["train.momentum"] = (
            f"The checkpoint was saved with momentum=0, so without a momentum; this run has "
            f"momentum={spec.train.momentum:g}."
        )
    out |= _other_stages(saved, spec, scalars)
    if step >= spec.train.steps:
        done = plural_text(step, "step")
        out["train.steps"] = f"The checkpoint has {done} done; steps={spec.train.steps} leaves none to train."
    return out


def _other_fields(saved: Mapping[str, Any], spec: RunSpec) -> dict[str, str]:
    """Messages about the fields that must be the same and are not: those of the model, precision and optimizer."""
    mine, out = spec.model_dump(mode="json"), {}
    for section, names in (("model", mine["model"]), ("train", ["precision", "optimizer"])):
        before = saved.get(section, {})
        default = type(getattr(spec, section)).model_construct().model_dump(mode="json")
        for name in names:
            was, now = before.get(name, default[name]), mine[section][name]
            if was != now:
                out[f"{section}.{name}"] = f"The checkpoint was saved with {name}={was}; this run has {name}={now}."
    return out


def _other_stages(saved: Mapping[str, Any], spec: RunSpec, scalars: Mapping[str, float]) -> dict[str, str]:
    """A message if stages that have made different numbers of updates do not keep their layers, else {}."""
    try:
        before = _own_stages(saved, scalars)
    except ValueError:
        why = (
            "The checkpoint's stages have made different numbers of updates, so each must stay whole, and this version "
            "does not understand which layers each of them has: its spec is of another version."
        )
        return {"parallel.pp": why}
    if before is None:
        return {}
    now = Layout.of(spec)
    if (before.stage_units, before.places) == (now.stage_units, now.places):
        return {}
    cuts = ", ".join(str(units[0]) for units in before.stage_units[1:])
    why = (
        f"The checkpoint's {before.pp} stages have made different numbers of updates, so each must stay whole: "
        f"use pp={before.pp} and cuts={cuts}; the replicas of each may change."
    )
    return {"parallel.pp": why}


def _begins_momentum(saved: Mapping[str, Any], spec: RunSpec) -> bool:
    """Whether a run of `spec` needs momentum buffers that a run with the dumped TrainSpec `saved` did not keep."""
    return spec.train.optimizer == "sgd" and spec.train.momentum > 0 and saved.get("momentum") == 0


def _own_stages(saved: Mapping[str, Any], scalars: Mapping[str, float]) -> Layout | None:
    """The layout of the spec `saved` if its stages have made different numbers of updates, else None.

    Raises ValueError if they have, according to `scalars`, but the spec is not understood.
    """
    apart = any(name.startswith("steps.") for name in scalars)
    try:
        spec = RunSpec.stored(saved)
        uneven = len({spec.parallel.updates(place) for place in range(spec.parallel.pp)}) > 1
        return Layout.of(spec) if uneven or apart else None
    except ValueError:  # such as pydantic's
        if apart:
            raise
        return None


def require_match(manifest: Manifest, spec: RunSpec, run: int = 0) -> None:
    """Raises CheckpointError, with messages by field, if a run of `spec` cannot resume from this checkpoint.

    `run` is that run's number, 0 without a dashboard. A run can resume from its own checkpoint of the last step,
    although nothing is left to train, to complete its end. Of parameter values alone, precision, optimizer, dropout
    and attention may be others.
    """
    wrong = mismatches(manifest.spec, spec, manifest.step, manifest.scalars)
    if run and manifest.run == run and manifest.step == spec.train.steps:
        wrong.pop("train.steps", None)
    if manifest.weights_only:
        for field in NOT_OF_WEIGHTS:
            wrong.pop(field, None)
    if wrong:
        raise CheckpointError(" ".join(wrong.values()), wrong)
