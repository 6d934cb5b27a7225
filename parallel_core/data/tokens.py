"""Sequences of bytes from a text."""

from __future__ import annotations

import numpy as np

from parallel_core.data.corpus import CorpusError


class Tokens:
    """Sequences of `seq` bytes of `corpus` (u1); the target of each byte is the next one.

    A byte is its own token; with a vocabulary below 256, its remainder. Raises CorpusError where the corpus is too
    short for one sequence.
    """

    def __init__(self, seq: int, vocab: int, corpus: np.ndarray) -> None:
        self._corpus, self._vocab = corpus, vocab
        self._window = np.arange(seq + 1)
        self.length = len(corpus) - seq
        if self.length < 1:
            raise CorpusError(f"the corpus has {len(corpus)} bytes; one sequence needs {seq + 1}.")

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns token ids [n, seq] int64 and, as targets, the same shifted by one."""
        tokens = self._corpus[numbers[:, None] + self._window]
        ids = (tokens if self._vocab >= 256 else tokens % self._vocab).astype(np.int64)
        return ids[:, :-1], ids[:, 1:]

    def count(self, numbers: np.ndarray) -> int:
        """Returns the number of targets: every byte is one."""
        return len(numbers) * (len(self._window) - 1)
