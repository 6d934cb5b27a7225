"""Token files: the token ids of a text, memory-mapped from a worker's data folder.

    8 bytes   "TYTOKENS"
    u4        version, 1
    u4        bytes of a token: 2 or 4
    u8        vocabulary: every token is below it
    u8        tokens in the file
    the rest  the tokens, little-endian

A spec names one as `tokens:<name>`, which is `<name>.tokens` in the worker's folder of corpora: never by a path.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.atomic_file import whole_file
from parallel_core.data.content import fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.file_listing import MOST_LISTED, Known, Listing, path_of
from parallel_core.data.file_listing import listing as listing_of
from parallel_core.data.tokens import Windows

_HEAD = struct.Struct("<8sIIQQ")
MAGIC, VERSION, SUFFIX = b"TYTOKENS", 1, ".tokens"
TYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_CHUNK = 1 << 22
"""Tokens packed at a time."""


def open(name: str, folder: Path | None) -> tuple[np.ndarray, int]:
    """Returns (memory-mapped tokens, vocabulary) of corpus `tokens:<name>`. Raises CorpusError where it is missing or
    damaged."""
    path = path_of("tokens", name, folder)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise CorpusError(f"{path.name} is no token file: it does not begin with {MAGIC.decode()}.")
    _, version, item, vocab, count = _HEAD.unpack(head)
    if version != VERSION or item not in TYPES or vocab < 1:
        raise CorpusError(f"{path.name} is no token file of this version: version {version}, {item} bytes a token.")
    if size != _HEAD.size + count * item:
        raise CorpusError(
            f"{path.name} is cut short or damaged: {size} bytes instead of {_HEAD.size + count * item} "
            f"for its {count} tokens."
        )
    if not count:
        raise CorpusError(f"{path.name} is empty; a corpus needs at least one sequence of tokens.")
    return np.memmap(path, TYPES[item], "r", _HEAD.size), vocab


def listing(folder: Path, known: Known) -> Listing:
    """Returns {name, tokens, vocab, values} of a folder's token files, at most MOST_LISTED: `file_listing.listing`."""
    return listing_of(folder, known, "tokens", _entry, MOST_LISTED)


def _entry(name: str, folder: Path) -> dict[str, Any]:
    tokens, vocab = open(name, folder)
    return {"name": name, "tokens": len(tokens), "vocab": vocab, "values": fingerprint(tokens)}


def pack(source: Path, item: int, vocab: int, name: str, folder: Path) -> int:
    """Writes `tokens:<name>` from a file of raw little-endian tokens of `item` bytes; returns the number of tokens.

    Raises CorpusError where the source is empty or not a whole number of tokens, or has a token outside of the
    vocabulary, and where the file cannot be written.
    """
    size = source.stat().st_size
    if not size:
        raise CorpusError(f"{source} is empty: it has no tokens.")
    if size % item:
        raise CorpusError(f"{source} has {size} bytes, which is no whole number of tokens of {item} bytes.")
    tokens = np.memmap(source, TYPES[item], "r")
    target = folder / f"{name}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as out:
            out.write(_HEAD.pack(MAGIC, VERSION, item, vocab, len(tokens)))
            for first in range(0, len(tokens), _CHUNK):
                part = np.asarray(tokens[first : first + _CHUNK])
                if part.max() >= vocab:
                    at = first + int(part.argmax())
                    raise CorpusError(f"{source} has token {part.max()} at place {at}; the vocabulary is {vocab}.")
                out.write(part.tobytes())
    except OSError as error:
        raise CorpusError(f"{target} cannot be written ({error.strerror}).") from error
    return len(tokens)


class FileTokens(Windows):
    """Sequences of `seq` tokens of corpus `tokens:<name>`.

    Raises CorpusError where the file is damaged or too short, or has a larger vocabulary than the model.
    """

    def __init__(self, seq: int, vocab: int, name: str, folder: Path | None) -> None:
        tokens, self._vocab = open(name, folder)
        self._name = name
        if self._vocab > vocab:
            raise CorpusError(f"{name} has tokens up to {self._vocab - 1}; use model.vocab={self._vocab} or more.")
        super().__init__(seq, tokens, f"{name} has {len(tokens)} tokens")

    def ids(self, stored: np.ndarray) -> np.ndarray:
        ids = stored.astype(np.int64)
        if ids.size and ids.max() >= self._vocab:
            raise CorpusError(f"{self._name} is damaged: it has token {ids.max()}, its vocabulary is {self._vocab}.")
        return ids
