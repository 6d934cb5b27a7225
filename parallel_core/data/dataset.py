"""The datasets that samples are drawn from: `train.corpus` names one, of those its model's kind takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from parallel_core.data import corpus
from parallel_core.data.held_out import HeldOut
from parallel_core.data.image_file import FileImages
from parallel_core.data.images import Images
from parallel_core.data.pairs import Pairs
from parallel_core.data.token_file import FileTokens
from parallel_core.data.tokens import Tokens
from parallel_core.outline import outline_of
from parallel_core.outline.images import ImageOutline
from parallel_core.spec import RunSpec


class Dataset(Protocol):
    """A set of samples numbered 0 .. length - 1."""

    @property
    def length(self) -> int: ...

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (inputs, targets), [n, ...] each, of the samples `numbers` [n]; a target below 0 does not count."""

    def count(self, numbers: np.ndarray) -> int:
        """Returns how many targets of the samples `numbers` [n] count."""

    def content(self) -> str:
        """Returns 16 hexadecimal digits that tell these data from others of the same name (`content.fingerprint`)."""

    def hold_out(self, samples: int) -> HeldOut:
        """Returns the last `samples`, none of which overlap. Raises CorpusError where none would be left to train."""


def open_dataset(spec: RunSpec, cache: Path | None = None) -> Dataset:
    """Returns the dataset of a run; `cache` is the worker's folder of corpora. Raises CorpusError."""
    name = spec.train.corpus.partition(":")[0]
    if name not in OPENERS:
        raise corpus.CorpusError(f"corpus {name} is not known here; train.corpus is one of {', '.join(OPENERS)}.")
    return OPENERS[name](spec, cache)


def stand_in(spec: RunSpec) -> Dataset:
    """Returns samples of the shapes of those of a run that reads `Outline.profiled`: a profile has no files."""
    return (_digits if spec.train.corpus.startswith("images:") else open_dataset)(spec, None)


def _text(spec: RunSpec, cache: Path | None) -> Dataset:
    return Tokens(spec.model.seq, spec.model.vocab, corpus.open(spec.train.corpus, cache))


def _tokens(spec: RunSpec, cache: Path | None) -> Dataset:
    return FileTokens(spec.model.seq, spec.model.vocab, spec.train.corpus, cache)


def _digits(spec: RunSpec, cache: Path | None) -> Dataset:
    return Images(_side(spec), spec.model.channels, spec.model.classes)


def _images(spec: RunSpec, cache: Path | None) -> Dataset:
    return FileImages(_side(spec), spec.model.channels, spec.model.classes, spec.train.corpus, cache)


def _side(spec: RunSpec) -> int:
    return cast(ImageOutline, outline_of(spec.model)).side  # `check_corpus` lets no other kind take images


def _django(spec: RunSpec, cache: Path | None) -> Dataset:
    return Pairs(spec.model.seq, spec.model.vocab)


OPENERS: dict[str, Callable[[RunSpec, Path | None], Dataset]] = {
    "stdlib": _text,
    "blob": _text,
    "tokens": _tokens,
    "digits": _digits,
    "images": _images,
    "django": _django,
}
"""Opens the dataset of a corpus, by the word of `Outline.corpora` that stands for it."""
