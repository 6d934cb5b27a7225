"""The datasets that samples are drawn from: one for each kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from parallel_core.data import corpus
from parallel_core.data.images import Images
from parallel_core.data.pairs import Pairs
from parallel_core.data.token_file import FileTokens
from parallel_core.data.tokens import Tokens
from parallel_core.outline import outline_of
from parallel_core.outline.gnmt import GnmtOutline
from parallel_core.outline.images import ImageOutline
from parallel_core.spec import RunSpec


class Dataset(Protocol):
    """A set of samples numbered 0 .. length - 1."""

    @property
    def length(self) -> int: ...

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, targets), [n, ...] each, of the samples `numbers` [n]; a target below 0 does not count."""

    def count(self, numbers: np.ndarray) -> int:
        """Returns how many targets of these samples count."""


def open_dataset(spec: RunSpec, cache: Path | None = None) -> Dataset:
    """Returns the dataset of a run; `cache` is the worker's folder of corpora. Raises CorpusError."""
    outline = outline_of(spec.model)
    if isinstance(outline, ImageOutline):
        return Images(outline.side)
    if isinstance(outline, GnmtOutline):
        return Pairs(spec.model.seq, spec.model.vocab)
    if spec.train.corpus.startswith("tokens:"):
        return FileTokens(spec.model.seq, spec.model.vocab, spec.train.corpus, cache)
    return Tokens(spec.model.seq, spec.model.vocab, corpus.open(spec.train.corpus, cache))
