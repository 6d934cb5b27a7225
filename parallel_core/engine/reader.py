"""Reads a rank's part of each step's global batch to its device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from parallel_core.data.held_out import HeldOutBatches
from parallel_core.data.sampler import Sampler
from parallel_core.engine.device import Device
from parallel_core.engine.fingerprint import of_arrays
from parallel_core.engine.host_copies import PlainUploads, Uploads
from parallel_core.engine.injected import Injected
from parallel_core.engine.precision import DTYPES
from parallel_core.engine.stage import Batch
from parallel_core.models.microbatch_context import Sample
from parallel_core.observe.recorder import LANE_HOST
from parallel_core.observe.scope import Scope
from parallel_core.outline import outline_of
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.stream import steps_apart
from parallel_core.spec import RunSpec


class Reader:
    """Reads the micro-batches `ids` of every step; `units` are the layers of this rank."""

    def __init__(
        self,
        spec: RunSpec,
        sampler: Sampler,
        ids: tuple[int, ...],
        units: Sequence[str],
        device: Device,
        scope: Scope,
        faults: Injected,
    ) -> None:
        self.sampler, self._ids, self._scope, self._faults = sampler, ids, scope, faults
        # Two for each step whose totals may be under way: until they are known, so may be its copies.
        self._inputs, self._targets = (device.uploads(2 * (1 + steps_apart(spec))) for _ in range(2))
        self._held_out = PlainUploads(device.torch)
        self.reads = bool(outline_of(spec.model).readers & set(units))
        """Whether any of the layers reads samples."""
        self._dtype = DTYPES[spec.train.precision]

    def read(self, step: int) -> Batch:
        """Returns this rank's batch; empty on a rank none of whose layers reads samples."""
        start = self._scope.mark()
        with self._scope.named(Kind.DATA.name):
            batch = self._read_batch(step) if self.reads else Batch(step, {}, 0.0)
        self._scope.micro_batch = -1
        self._scope.span(Kind.DATA, LANE_HOST, start)
        return batch

    def held_out(self, batches: HeldOutBatches, number: int, ids: tuple[int, ...]) -> dict[int, Sample]:
        """Returns the micro-batches `ids` of a round of held-out samples, by id; {} where `read` returns none."""
        if not (self.reads and ids):
            return {}
        inputs, targets = (self._to_device(part, self._held_out).unbind(0) for part in batches.take(number, ids))
        return dict(zip(ids, map(Sample, inputs, targets), strict=True))

    def prints(self, step: int) -> tuple[int, int]:
        """Returns 64-bit hashes of the numbers of the samples drawn in `step` for all ranks, and of the samples read by
        this rank."""
        drawn = self.sampler.micro_batches(step, self._ids)
        return of_arrays([self.sampler.numbers(step)]), of_arrays([drawn.inputs, drawn.targets])

    def _read_batch(self, step: int) -> Batch:
        self._faults.read()
        drawn = self.sampler.micro_batches(step, self._ids)
        inputs = self._to_device(drawn.inputs, self._inputs).unbind(0)
        targets = self._to_device(drawn.targets, self._targets).unbind(0)
        return Batch(step, dict(zip(self._ids, map(Sample, inputs, targets), strict=True)), 1.0 / drawn.global_count)

    def _to_device(self, array: np.ndarray, upload: Uploads) -> torch.Tensor:
        """Copies integers as they are, floating-point values in the run's precision."""
        tensor = upload(torch.from_numpy(array))
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor
