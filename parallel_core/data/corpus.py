"""Corpora: real text read as bytes. A corpus is identified by its content, never by a path.

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
"""Limit of the `stdlib` corpus in bytes: enough text for any run here, and quick to read."""


class CorpusError(ValueError):
    """The corpus is missing, empty or too short; the message names it and says what would be right."""


def open(name: str, cache: Path | None = None) -> np.ndarray:
    """Returns the bytes of corpus `name` as a read-only u1 array, memory-mapped where a `cache` folder is given.

    Raises CorpusError where a blob is not in the cache or is empty.
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
    """Returns the path of `blob:<sha256>` in `cache` (None without a cache)."""
    return cache / name.removeprefix("blob:") if cache is not None else None


def _stdlib(cache: Path | None) -> np.ndarray:
    if cache is None:
        return np.frombuffer(_kept_stdlib(), dtype=np.uint8)
    path = cache / f"stdlib-{platform.python_version()}.bin"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=cache)  # several ranks may race: all write the same bytes
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_read_stdlib())
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    return np.memmap(path, dtype=np.uint8, mode="r")


def _read_stdlib() -> bytes:
    """Returns the sources in the order of their paths, cut at MAX_STDLIB bytes."""
    parts, size = [], 0
    for path in _sources(Path(sysconfig.get_paths()["stdlib"])):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= MAX_STDLIB:
            break
    return b"".join(parts)[:MAX_STDLIB]


@functools.cache
def _kept_stdlib() -> bytes:
    """Caches the corpus in a process that has no cache folder, since a profile opens it repeatedly."""
    return _read_stdlib()


def _sources(folder: Path) -> Iterator[Path]:
    """Yields the `.py` files directly in `folder`, then those of its packages, sorted by name at each level."""
    entries = sorted(folder.iterdir())
    yield from (path for path in entries if path.suffix == ".py" and path.is_file())
    for path in entries:
        if path.is_dir() and path.name not in _SKIPPED and not path.name.startswith("config-"):
            yield from _sources(path)
