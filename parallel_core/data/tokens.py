"""Sequences of bytes from a text."""

from __future__ import annotations

import numpy as np

from parallel_core.data.content import fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.held_out import HeldOut, last_sequences
from parallel_core.model_spec import BYTES


class Windows:
    """All sequences of `seq` consecutive `tokens`, by the number of their first; the target of each token is the next
    one. Raises CorpusError, which begins with `has`, where there are too few for one sequence."""

    def __init__(self, seq: int, tokens: np.ndarray, has: str) -> None:
        self._tokens, self._window = tokens, np.arange(seq + 1)
        self.length = len(tokens) - seq
        if self.length < 1:
            raise CorpusError(f"{has}; one sequence needs {seq + 1}.")

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns token ids [n, seq] int64 and, as targets, the same shifted by one. Raises as `ids` does."""
        ids = self.ids(self._tokens[numbers[:, None] + self._window])
        return ids[:, :-1], ids[:, 1:]

    def ids(self, stored: np.ndarray) -> np.ndarray:
        """Returns the token ids [n, seq + 1] int64 of what is stored. Raises CorpusError where it is damaged."""
        raise NotImplementedError

    def count(self, numbers: np.ndarray) -> int:
        """Returns the number of targets: every token is one."""
        return len(numbers) * (len(self._window) - 1)

    def content(self) -> str:
        return fingerprint(self._tokens)

    def hold_out(self, samples: int) -> HeldOut:
        return last_sequences(len(self._tokens), len(self._window) - 1, samples)


class Tokens(Windows):
    """Sequences of bytes of `corpus` (u1). A byte is its own token; with a vocabulary below 256, its remainder."""

    def __init__(self, seq: int, vocab: int, corpus: np.ndarray) -> None:
        super().__init__(seq, corpus, f"the corpus has {len(corpus)} bytes")
        self._vocab = vocab

    def ids(self, stored: np.ndarray) -> np.ndarray:
        return (stored if self._vocab >= BYTES else stored % self._vocab).astype(np.int64)
