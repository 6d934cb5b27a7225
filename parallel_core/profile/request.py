"""What a profile has to measure. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_core.known_fields import without_later
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import Recompute
from parallel_core.outline.splits import Cut
from parallel_core.spec import DeviceKind, RunSpec

RECOMPUTES: tuple[Recompute, ...] = ("none", "full")
SPLITS: tuple[Cut, ...] = ("pairs", "sequence")
"""Tensor splits that every profile measures, in addition to that of its run; `RECOMPUTES` likewise."""


_NEEDED = frozenset(
    {"parallel.recompute", "parallel.tensor_split", "parallel.sequence"}
    | {f"train.{name}" for name in ("global_batch", "precision", "device", "deterministic")}
)


@dataclass(frozen=True)
class ProfileRequest:
    """What to measure: `samples` per micro-batch (ascending), tensor-parallel widths `tps`, kinds of recomputation.

    `splits`: tensor splits that are measured for each of `tps` beyond 1; not under full recomputation, which is
    predicted from layers that do not recompute.

    `devices`: number of ranks with a device of their own; `seconds`: at least spent on each condition of the layers;
    `sizes`: bytes of messages (None = 1 KiB to 16 MiB).
    """

    samples: Sequence[int] = (1, 2, 4, 8, 16)
    tps: Sequence[int] = (1,)
    recompute: Sequence[Recompute] = ("none",)
    splits: Sequence[Cut] = ("pairs",)
    devices: int = 1
    seconds: float = 3.0
    sizes: Sequence[int] | None = None


def other_kernels(spec: RunSpec) -> bool:
    """Whether a run does not use PyTorch's usual kernels but, by `train.deterministic`, the deterministic ones.

    Only on GPUs: on CPUs a step of each kind of model consists of the same operations of PyTorch with both.
    """
    return spec.train.deterministic and spec.train.device == "cuda"


def needs(name: str) -> bool:
    """Whether a profile depends on the field of a RunSpec with this dotted name."""
    return name.startswith("model.") or name in _NEEDED


def of_model(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped spec as a worker is asked to profile it: with the corpus of its model's profiles instead of its own,
    which is not read and which an older worker may not know."""
    corpus = outline_of(RunSpec.stored(spec).model).profiled
    return {**spec, "train": {**spec["train"], "corpus": corpus}}


def for_worker(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped spec with only those later fields on which its profile depends (`known_fields`)."""
    return without_later(of_model(spec), needs)


def measured_with(spec: RunSpec, other: RunSpec) -> bool:
    """Whether a profile for `other`, of the same model, precision, device and kernels, measures all that `spec`'s
    would."""
    own, its = spec.parallel, other.parallel
    return (
        spec.train.global_batch == other.train.global_batch
        and own.recompute in (*RECOMPUTES, its.recompute)
        and own.cut in (*SPLITS, its.cut)
    )


def spec_between(device: DeviceKind, each: int) -> RunSpec:
    """Returns the spec of the ranks that measure messages between two hosts, `each` on both; only their number and
    device matter."""
    model = {"kind": "mlp", "layers": 1, "hidden": 1, "image": 1}
    train = {"global_batch": 2 * each, "device": device}
    return RunSpec.model_validate({"model": model, "parallel": {"dp": 2 * each}, "train": train})
