"""What a profile is asked to measure. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallel_core.outline.splits import Cut
from parallel_core.spec import DeviceKind, Recompute, RunSpec

RECOMPUTES: tuple[Recompute, ...] = ("none", "full")
SPLITS: tuple[Cut, ...] = ("pairs",)
"""What every profile of a run measures, beside the run's own."""


@dataclass(frozen=True)
class ProfileRequest:
    """`samples` (ascending) in a micro-batch, widths `tps` of the tensor group, with and without recomputation.

    `splits` are the ways of cutting layers over a tensor group that are measured, for each of `tps` beyond 1; not where
    blocks are recomputed, which is one forward more.

    `devices` ranks have a device of their own; `seconds` are spent on each condition of the layers, at least;
    `sizes` are the bytes of messages (None = 1 KiB to 16 MiB).
    """

    samples: Sequence[int] = (1, 2, 4, 8, 16)
    tps: Sequence[int] = (1,)
    recompute: Sequence[Recompute] = ("none",)
    splits: Sequence[Cut] = ("pairs",)
    devices: int = 1
    seconds: float = 3.0
    sizes: Sequence[int] | None = None


def measured_with(spec: RunSpec, other: RunSpec) -> bool:
    """Whether a profile for `other`, of the same model, precision and device, measures all that `spec`'s would."""
    own, its = spec.parallel, other.parallel
    return (
        spec.train.global_batch == other.train.global_batch
        and own.recompute in (*RECOMPUTES, its.recompute)
        and own.cut in (*SPLITS, its.cut)
    )


def spec_between(device: DeviceKind, each: int) -> RunSpec:
    """What ranks are started with that time messages between two hosts, so many on each: of it only their number and
    their device matter."""
    model = {"kind": "mlp", "layers": 1, "hidden": 1, "image": 1}
    train = {"global_batch": 2 * each, "device": device}
    return RunSpec.model_validate({"model": model, "parallel": {"dp": 2 * each}, "train": train})
