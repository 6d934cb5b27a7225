"""Sentence pairs from the German catalogues (.po) in Django's wheel, read as files; Django is not imported."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from parallel_core.data.content import fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.held_out import HeldOut, last_samples
from parallel_core.outline.gnmt import MARKS

LANGUAGE = "de"
PADDING, BEGIN, END, UNKNOWN = range(MARKS)
_WORD = re.compile(r"\w+|[^\w\s]")
_ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)', re.MULTILINE)


def words(text: str) -> list[str]:
    """Returns the words and punctuation marks of a text in lower case."""
    return _WORD.findall(text.lower())


def parse(catalogue: str) -> list[tuple[str, str]]:
    """Returns (message, translation) pairs of a .po file, without plural forms, comments and untranslated entries."""
    pairs = ((_joined(a), _joined(b)) for a, b in _ENTRY.findall(catalogue))
    return [(a, b) for a, b in pairs if words(a) and words(b)]


def _joined(lines: str) -> str:
    """Joins the quoted lines of a string."""
    return "".join(ast.literal_eval(line) for line in lines.splitlines())


@cache
def sentences() -> list[tuple[str, str]]:
    """Returns all pairs in the order of the files' paths, without duplicates. Raises CorpusError where Django is not
    installed."""
    found = importlib.util.find_spec("django")  # locates it without importing it
    folders = list(found.submodule_search_locations or []) if found else []
    files = [path for folder in folders for path in sorted(Path(folder).rglob(f"locale/{LANGUAGE}/LC_MESSAGES/*.po"))]
    if not files:
        raise CorpusError("corpus django is not on this worker: its sentences come with Django; install django there.")
    return list(dict.fromkeys(pair for path in files for pair in parse(path.read_text(encoding="utf-8"))))


@lru_cache(maxsize=4)
def vocabulary(size: int) -> dict[str, int]:
    """Returns the most frequent words of both languages with their ids, which follow those of the special tokens."""
    counts = Counter(word for pair in sentences() for text in pair for word in words(text))
    often = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(often[: size - MARKS], MARKS)}


class Pairs:
    """Pairs of at most `seq` words each, cut and padded to that length."""

    def __init__(self, seq: int, vocab: int) -> None:
        numbers, found = vocabulary(vocab), sentences()
        self.length = len(found)
        self._inputs = np.full((self.length, 2, seq), PADDING, np.int64)
        self._targets = np.full((self.length, seq), -1, np.int64)
        for row, pair in enumerate(found):
            source, target = ([numbers.get(word, UNKNOWN) for word in words(text)] for text in pair)
            shifted, whole = [BEGIN, *target][:seq], [*target, END][:seq]
            self._inputs[row, 0, : len(source[:seq])] = source[:seq]
            self._inputs[row, 1, : len(shifted)] = shifted
            self._targets[row, : len(whole)] = whole

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns source and target shifted by one [n, 2, seq], and target [n, seq]; padding does not count (-1)."""
        return self._inputs[numbers], self._targets[numbers]

    def count(self, numbers: np.ndarray) -> int:
        """Returns the number of target words, end tokens included."""
        return int((self._targets[numbers] >= 0).sum())

    def content(self) -> str:
        return fingerprint(np.frombuffer(repr(sentences()).encode(), np.uint8))

    def hold_out(self, samples: int) -> HeldOut:
        return last_samples(self.length, samples, "sentence pairs")
