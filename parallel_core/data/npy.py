"""Arrays of .npy and .npz files, read part by part: their header first, and never a pickle (NumPy's format, NEP 1)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from parallel_core.data.corpus import CorpusError

PART = 1 << 24
"""Bytes of a part, at least one row."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Stored(NamedTuple):
    """An array [N, ..] whose header was read; its rows follow in `file`."""

    file: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    what: str

    def parts(self) -> Iterator[np.ndarray]:
        """Yields its rows, PART bytes at a time. Raises CorpusError where the file ends before."""
        row = prod(self.shape[1:]) * self.dtype.itemsize
        each = max(1, PART // max(row, 1))
        for first in range(0, self.shape[0], each):
            rows = min(each, self.shape[0] - first)
            data = self.file.read(rows * row)
            if len(data) != rows * row:
                raise CorpusError(f"{self.what} is cut short: it ends in row {first + len(data) // max(row, 1)}.")
            yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])

    def whole(self) -> np.ndarray:
        """Returns the array. Raises CorpusError where the file is cut short."""
        return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *self.parts()])


@contextmanager
def stored(path: Path, name: str = "") -> Iterator[Stored]:
    """Opens a .npy file, or the array `name` of a .npz file. Raises CorpusError where there is none, or one of Python
    objects."""
    try:
        with ExitStack() as files:
            file = _member(path, name, files) if name else files.enter_context(path.open("rb"))
            yield _header(file, f"{name} of {path.name}" if name else path.name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{path.name} is no whole .npz file: {error}.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror or error}).") from error


def _member(path: Path, name: str, files: ExitStack) -> IO[bytes]:
    """Opens an array of a .npz file. Raises CorpusError where it has none of that name, or one that cannot be read."""
    try:
        archive = files.enter_context(zipfile.ZipFile(path))
        if f"{name}.npy" not in archive.namelist():
            raise CorpusError(f"{path.name} has no array {name}; save one with numpy.savez(.., {name}=..).")
        return files.enter_context(archive.open(f"{name}.npy"))
    except RuntimeError as error:  # encrypted, or compressed in another way
        raise CorpusError(f"{path.name} is no .npz file that numpy.savez writes: {error}.") from error


def _header(file: IO[bytes], what: str) -> Stored:
    """Reads the header. Raises CorpusError where it is none of a plain array [N, ..]."""
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except (KeyError, ValueError, TokenError) as error:
        raise CorpusError(f"{what} is no array that numpy.save writes.") from error
    if dtype.hasobject:
        raise CorpusError(f"{what} has Python objects, which are never loaded; save numbers.")
    if min(shape, default=0) < 0 or not dtype.itemsize:
        raise CorpusError(f"{what} is no array of numbers: {dtype} {list(shape)}.")
    if not shape or (by_columns and len(shape) > 1):
        raise CorpusError(f"{what} is no array by rows; save numpy.ascontiguousarray of it.")
    return Stored(file, tuple(shape), dtype, what)
