"""The global batch of a step, the same under every layout.

Offsets into the corpus come from a counter-based generator (Philox, Salmon et al. 2011) keyed by (seed, step): no state
to carry, to save or to get out of step. Micro-batch id i, counted over all replicas, owns samples
[i x size, (i + 1) x size) of the step.
"""

from __future__ import annotations

import numpy as np

from parallel_core.data.corpus import CorpusError
from parallel_core.spec import RunSpec


class Sampler:
    """Cuts sequences of `seq + 1` bytes out of `corpus` (u1). Raises CorpusError where it is shorter than one."""

    def __init__(self, spec: RunSpec, corpus: np.ndarray) -> None:
        self.seed, self.batch, self.size = spec.train.seed, spec.train.global_batch, spec.micro_batch_size
        self.vocab = spec.model.vocab
        self._corpus = corpus
        self._window = np.arange(spec.model.seq + 1)
        self._starts = len(corpus) - spec.model.seq
        if self._starts < 1:
            raise CorpusError(f"the corpus has {len(corpus)} bytes; one sequence needs {spec.model.seq + 1}.")

    def offsets(self, step: int) -> np.ndarray:
        """Where each of the step's `global_batch` samples begins, (global_batch,) int64."""
        random = np.random.Generator(np.random.Philox(key=np.array([self.seed, step], dtype=np.uint64)))
        return random.integers(0, self._starts, size=self.batch)

    def micro_batches(self, step: int, ids: tuple[int, ...]) -> np.ndarray:
        """Token ids (len(ids), size, seq + 1), int64. Inputs are [..., :-1], targets [..., 1:].

        A byte is its own token; with a vocabulary below 256, its remainder.
        """
        offsets = self.offsets(step).reshape(-1, self.size)[list(ids)]
        tokens = self._corpus[offsets[..., None] + self._window]
        return (tokens if self.vocab >= 256 else tokens % self.vocab).astype(np.int64)
