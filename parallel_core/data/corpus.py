"""Corpora: real text read as bytes. A corpus is named by its content, never by a path.

`stdlib` is the `.py` sources of the running Python's standard library; `blob:<sha256>` is a file that the worker has
fetched into its cache folder under that name.
"""

from __future__ import annotations

import functools
import os
import platform
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
MAX_STDLIB = 16 * 2**20
"""Bytes of the standard library that are kept: enough text for any run here, and quick to read."""


class CorpusError(ValueError):
    """The corpus is missing, empty or too short; the message says which and what would be right."""


def open(name: str, cache: Path | None = None) -> np.ndarray:
    """The bytes of corpus `name` as a read-only u1 array, memory-mapped where a `cache` folder is given.

    Raises CorpusError where a blob is not in the cache or holds no byte.
    """
    if name == "stdlib":
        return _stdlib(cache)
    path = blob_path(name, cache)
    if path is None or not path.is_file():
        raise CorpusError(f"corpus {name} is not in this worker's cache; upload the text again.")
    if path.stat().st_size == 0:
        raise CorpusError(f"corpus {name} is empty; a corpus needs at least one sequence of text.")
    return np.memmap(path, dtype=np.uint8, mode="r")


def blob_path(name: str, cache: Path | None) -> Path | None:
    """Where `blob:<sha256>` lies in `cache` (None without one)."""
    return cache / name.removeprefix("blob:") if cache is not None else None


def _stdlib(cache: Path | None) -> np.ndarray:
    if cache is None:
        return np.frombuffer(_kept_stdlib(), dtype=np.uint8)
    path = cache / f"stdlib-{platform.python_version()}.bin"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=cache)
        with os.fdopen(handle, "wb") as file:
            file.write(_read_stdlib())
        Path(made).replace(path)  # several ranks may race: each puts the same bytes
    return np.memmap(path, dtype=np.uint8, mode="r")


def _read_stdlib() -> bytes:
    """Sources in the order of their paths, cut at MAX_STDLIB bytes."""
    parts, size = [], 0
    for path in _sources(Path(sysconfig.get_paths()["stdlib"])):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= MAX_STDLIB:
            break
    return b"".join(parts)[:MAX_STDLIB]


@functools.cache
def _kept_stdlib() -> bytes:
    """In the memory of a process that has no folder to keep it in: a profile opens it again and again."""
    return _read_stdlib()


def _sources(folder: Path) -> Iterator[Path]:
    """The `.py` files directly in `folder`, then those of its packages, each level by name."""
    entries = sorted(folder.iterdir())
    yield from (path for path in entries if path.suffix == ".py" and path.is_file())
    for path in entries:
        if path.is_dir() and path.name not in _SKIPPED and not path.name.startswith("config-"):
            yield from _sources(path)
