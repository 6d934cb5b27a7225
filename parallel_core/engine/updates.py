"""Checkpoint scalars that differ between pipeline ranks: every rank knows, and the checkpoint holds, those of all.

Pipeline ranks with different numbers of replicas make different numbers of updates per step (`ParallelSpec.updates`),
and AdamW's bias correction depends on their number (SGD counts them, too). In fp16 without a flush each pipeline rank
also has its own loss scale and skips updates on its own (`PerStageScalars`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from parallel_core.engine.collectives import Group, all_gather
from parallel_core.engine.device import Device
from parallel_core.layout import Layout
from parallel_core.spec import ParallelSpec, RunSpec


class ScalarCodec(Protocol):
    """Converts a rank's scalars, such as `steps` (updates done), to those of the checkpoint and back."""

    def scalars(self, mine: Mapping[str, float]) -> dict[str, float]:
        """Returns those of the checkpoint, equal on all ranks. A collective: every rank calls it, between steps, with
        the pipeline empty."""

    def restore(self, saved: Mapping[str, float]) -> dict[str, float]:
        """Returns this rank's scalars. Raises KeyError where one is missing."""


def scalar_codec(spec: RunSpec, layout: Layout, place: int, group: Group, device: Device) -> ScalarCodec:
    """Returns the converter of a rank at pipeline rank `place`; `group` is the world."""
    if spec.train.precision == "fp16" and not spec.parallel.flushes:
        return PerStageScalars(layout, place, group, device)
    return UpdateCounts(spec.parallel, place)


class PerStageScalars:
    """Adds `<name>.<place>` for every pipeline rank where values differ; `<name>` itself is then that of the pipeline
    rank with the smallest loss scale."""

    def __init__(self, layout: Layout, place: int, group: Group, device: Device) -> None:
        self._layout, self._place, self._group, self._device = layout, place, group, device

    def scalars(self, mine: Mapping[str, float]) -> dict[str, float]:
        given = torch.tensor(list(mine.values()), dtype=torch.float64, device=self._device.torch)
        table = given.new_empty(self._layout.world * len(given))
        all_gather(table, given, self._group).wait()
        rows = table.view(self._layout.world, -1).tolist()
        each = [dict(zip(mine, rows[self._layout.rank(place)], strict=True)) for place in range(self._layout.pp)]
        apart = {name for name in mine if len({own[name] for own in each}) > 1}
        least = min(each, key=lambda own: own["loss_scale.value"])
        return least | {f"{name}.{place}": own[name] for place, own in enumerate(each) for name in own if name in apart}

    def restore(self, saved: Mapping[str, float]) -> dict[str, float]:
        return {name: saved.get(f"{name}.{self._place}", value) for name, value in saved.items()}


class UpdateCounts:
    """Computes the update counts of all pipeline ranks from that of `place`, without communication. Checkpoints are
    made between steps, with the pipeline empty."""

    def __init__(self, split: ParallelSpec, place: int) -> None:
        self._a_step = [split.updates(other) for other in range(split.pp)]
        self._first, self._place = [0.0] * split.pp, place

    def scalars(self, mine: Mapping[str, float]) -> dict[str, float]:
        """Adds `steps.<place>` for every pipeline rank, where they differ."""
        steps = (mine["steps"] - self._first[self._place]) / self._a_step[self._place]
        each = [first + steps * made for first, made in zip(self._first, self._a_step, strict=True)]
        return {**mine, **({f"steps.{i}": made for i, made in enumerate(each)} if len(set(each)) > 1 else {})}

    def restore(self, saved: Mapping[str, float]) -> dict[str, float]:
        """Returns the scalars of `place`. Where update counts differ, the saved stages must hold the same layers."""
        self._first = [saved.get(f"steps.{place}", saved["steps"]) for place in range(len(self._first))]
        return {**saved, "steps": self._first[self._place]}
