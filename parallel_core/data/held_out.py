"""Samples that are held out of training, at the end of a corpus, and the batches in which their loss is evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parallel_core.data.corpus import CorpusError

if TYPE_CHECKING:
    from parallel_core.data.dataset import Dataset
    from parallel_core.spec import RunSpec


class HeldOut(NamedTuple):
    """The `numbers` of the samples that are held out, and how many, the first ones, are left to train: those `before`
    them that read nothing of theirs."""

    numbers: np.ndarray
    before: int


def last_samples(length: int, samples: int, what: str) -> HeldOut:
    """Holds out the last `samples` of `length` independent ones. Raises CorpusError where none would be left."""
    if samples >= length:
        raise CorpusError(f"the corpus has {length} {what}; use at most train.eval_samples={length - 1}.")
    return HeldOut(np.arange(length - samples, length), length - samples)


def most_sequences(tokens: int, seq: int) -> int:
    """The most samples that can be held out of so many tokens: one sequence is left to train."""
    return max((tokens - 2 - seq) // seq, 0)


def last_sequences(tokens: int, seq: int, samples: int) -> HeldOut:
    """Holds out the last `samples` sequences, each of which begins where the targets of the one before end.

    A sequence is numbered by its first token; those left to train end before the first one held out begins. Raises
    CorpusError where there would be none.
    """
    if samples > (most := most_sequences(tokens, seq)):
        use = f"use at most train.eval_samples={most}" if most else "use train.eval_every=0"
        raise CorpusError(f"the corpus has {tokens} tokens, too few to hold out {samples} sequences of {seq}; {use}.")
    first = tokens - 1 - samples * seq
    return HeldOut(first + seq * np.arange(samples), first - seq)


class HeldOutBatch(NamedTuple):
    """Micro-batches of held-out samples, inputs and targets [ids, samples, ...]."""

    inputs: np.ndarray
    targets: np.ndarray


class HeldOutBatches:
    """The held-out samples of a run in `rounds` of at most a global batch, split into micro-batches like a step.

    The last micro-batches may be filled up with samples whose targets do not count (-1). Every replica has as many.
    """

    def __init__(self, spec: RunSpec, dataset: Dataset) -> None:
        self._dataset, self._size, self._per_step = dataset, spec.micro_batch_size, spec.parallel.per_step
        self._replicas = spec.parallel.dp
        self._numbers = dataset.hold_out(spec.train.held_out).numbers
        self.targets = dataset.count(self._numbers)
        """Targets that count, in all rounds."""
        self.rounds = -(-len(self._numbers) // (self._size * self._per_step))

    def micro_batches(self, number: int) -> int:
        """Returns the number of micro-batches of a round over all replicas: the first ones of a step."""
        left = len(self._numbers) - number * self._size * self._per_step
        each = -(-left // (self._size * self._replicas))
        return min(each * self._replicas, self._per_step)

    def take(self, number: int, ids: tuple[int, ...]) -> HeldOutBatch:
        """Returns the micro-batches `ids` of a round."""
        first = (number * self._per_step + np.array(ids, dtype=np.int64)) * self._size
        places = (first[:, None] + np.arange(self._size)).reshape(-1)
        known = places < len(self._numbers)
        inputs, targets = self._dataset.take(self._numbers[np.where(known, places, 0)])
        targets = np.where(known.reshape(-1, *[1] * (targets.ndim - 1)), targets, -1)
        return HeldOutBatch(*(part.reshape(len(ids), self._size, *part.shape[1:]) for part in (inputs, targets)))
