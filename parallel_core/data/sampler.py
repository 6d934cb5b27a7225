"""Draws the global batch of each step, the same under every layout.

The samples' numbers are from a counter-based generator (Philox, Salmon et al. 2011) keyed by (seed, step), so there
is no generator state to save or to keep in sync. Micro-batch id i, counted over all replicas, has samples [i x size,
(i + 1) x size) of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_core.data.dataset import Dataset
from parallel_core.spec import RunSpec


class MicroBatches(NamedTuple):
    """Micro-batches of a step: inputs and targets [ids, samples, ...]; `global_count`: targets that count in the whole
    global batch."""

    inputs: np.ndarray
    targets: np.ndarray
    global_count: int


class Sampler:
    """Draws the samples of each step from `dataset`, but none that is held out."""

    def __init__(self, spec: RunSpec, dataset: Dataset) -> None:
        self.seed, self.batch, self.size = spec.train.seed, spec.train.global_batch, spec.micro_batch_size
        self.dataset = dataset
        held = spec.train.held_out
        self._length = dataset.hold_out(held).before if held else dataset.length

    def numbers(self, step: int) -> np.ndarray:
        """Returns the numbers of the step's samples, [global_batch] int64."""
        random = np.random.Generator(np.random.Philox(key=np.array([self.seed, step], dtype=np.uint64)))
        return random.integers(0, self._length, size=self.batch)

    def micro_batches(self, step: int, ids: tuple[int, ...]) -> MicroBatches:
        """Returns the samples of these micro-batches, in the order of `ids`."""
        numbers = self.numbers(step)
        mine = numbers.reshape(-1, self.size)[list(ids)]
        parts = self.dataset.take(mine.reshape(-1))
        inputs, targets = (part.reshape(len(ids), self.size, *part.shape[1:]) for part in parts)
        return MicroBatches(inputs, targets, self.dataset.count(numbers))
