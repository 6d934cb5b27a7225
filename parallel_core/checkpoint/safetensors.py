"""Reads and writes safetensors files (huggingface.co/docs/safetensors, "Format"): named tensors as plain numbers.

    8 bytes   N, the length of the header, little-endian
    N bytes   JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}}, and "__metadata__": {text: text}
    the rest  the numbers; offsets count from here, and the tensors cover it without gaps or overlaps

A file's header is fully checked. The rest is mapped into memory, so a tensor is not read until it is used.

The package of that name (0.8) does not fit: it writes from addresses of all tensors at once, so that the whole model
would have to be in memory, where `write` takes one after another; and to NumPy it reads no bf16.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parallel_core.atomic_file import whole_file
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.untrusted import PARSE_ERRORS, text_of

ITEM = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
ITEM |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
"""The format's name of an element type -> bytes of an element."""
MAX_HEADER = 100 * 2**20
"""Largest header in bytes, as in the reference implementation."""
SAMPLE = 64
"""Bytes of a tensor in a sample."""
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Entry:
    """One tensor, in bytes [begin, end) after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafeTensors:
    """The tensors of one file. Raises CheckpointError if it is truncated, damaged, or not in this format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():  # opening a pipe would wait for its writer; a name may be one that no file can have
                raise CheckpointError(f"{path} cannot be read: it is no file.")
            with path.open("rb") as file:
                self._data = self._mapped(file)
                header = self._header(file)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from error
        self._base = 8 + len(header)
        try:
            raw = json.loads(header)
            raw.pop("__metadata__", None)
            self.entries = {str(name): _entry(entry) for name, entry in raw.items()}
        except PARSE_ERRORS as error:
            raise self._wrong(f"its header is spoilt ({error})") from error
        self._check(len(self._data) - self._base)

    def _mapped(self, file: BinaryIO) -> mmap.mmap | bytes:
        size = os.fstat(file.fileno()).st_size
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except ValueError:  # it was emptied meanwhile
            return b""

    def _header(self, file: BinaryIO) -> bytes:
        """The JSON, not by the mapping: its memory is gone, and signal 7 ends the process, while a file is written
        anew, or where its disk fails."""
        size = len(self._data)
        if len(head := file.read(8)) < 8 or size < 8:
            raise self._wrong(f"it has {min(size, len(head))} bytes, too few for a header")
        (length,) = struct.unpack("<Q", head)
        if length > min(MAX_HEADER, size - 8):
            raise self._wrong(f"its header claims {length} bytes of the file's {size}: cut short, or another format")
        if len(header := file.read(length)) < length:
            raise self._wrong("it was cut short meanwhile")
        return header

    def _check(self, size: int) -> None:
        """Raises CheckpointError unless the tensors cover all `size` bytes, each with exactly its own size."""
        at = 0
        for name, entry in sorted(self.entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
            if entry.begin != at or entry.end - entry.begin != math.prod(entry.shape) * ITEM[entry.dtype]:
                raise self._wrong(f"{name} does not lie where its header says")
            at = entry.end
        if at != size:
            raise self._wrong(f"it has {size} bytes of numbers instead of {at}: cut short, or damaged")

    def data(self, name: str) -> np.ndarray:
        """The bytes of a tensor (u1), mapped from the file. Raises CheckpointError if there is none of that name."""
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path} has no {name}.")
        return np.frombuffer(self._data, np.uint8, entry.end - entry.begin, self._base + entry.begin)

    def samples(self) -> dict[str, bytes]:
        """At most SAMPLE bytes from the middle of each tensor, by name: read, not mapped, as the header is. Raises
        CheckpointError if they cannot be read."""
        out = {}
        try:
            with self.path.open("rb") as file:
                for name, entry in sorted(self.entries.items(), key=lambda pair: pair[1].begin):
                    file.seek(self._base + (entry.begin + entry.end) // 2)
                    out[name] = file.read(min(SAMPLE, entry.end - (entry.begin + entry.end) // 2))
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read ({error.strerror}).") from error
        return out

    def _wrong(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is no whole safetensors file: {why}.")


def _entry(raw: Mapping[str, Any]) -> Entry:
    begin, end = (int(value) for value in raw["data_offsets"])
    shape = tuple(int(size) for size in raw["shape"])
    if raw["dtype"] not in ITEM:
        raise ValueError(f"element type {raw['dtype']!r}")
    if begin < 0 or end < begin or any(size < 0 for size in shape):
        raise ValueError(f"offsets {begin} to {end}")
    return Entry(raw["dtype"], shape, begin, end)


def open_all(path: Path) -> dict[str, SafeTensors]:
    """Tensor name -> the file that has it, for a file, or a folder with one file or an index of several.

    Raises CheckpointError if the index or a file is malformed, or a tensor is missing.
    """
    if not path.is_dir():
        return _named(SafeTensors(path))
    if not (path / INDEX).exists():
        return _named(SafeTensors(path / SINGLE))
    try:
        where = {str(name): str(file) for name, file in json.loads(text_of(path / INDEX))["weight_map"].items()}
    except OSError as error:
        raise CheckpointError(f"{path / INDEX} cannot be read ({error.strerror}).") from error
    except PARSE_ERRORS as error:
        raise CheckpointError(f"{path / INDEX} is no index of safetensors files ({error}).") from error
    if strange := [name for name in where.values() if Path(name).name != name or name in ("", "..")]:
        raise CheckpointError(f"{path / INDEX} leads out of its folder: {strange[0]!r}.")
    files = {name: SafeTensors(path / name) for name in sorted(set(where.values()))}
    if missing := [name for name, file in where.items() if name not in files[file].entries]:
        raise CheckpointError(f"{path / where[missing[0]]} has no {missing[0]}, which {INDEX} says it holds.")
    return {name: files[file] for name, file in where.items()}


def _named(file: SafeTensors) -> dict[str, SafeTensors]:
    return dict.fromkeys(file.entries, file)


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], data: Iterable[bytes | memoryview]) -> int:
    """Writes `tensors`, name -> (element type, shape), whose bytes `data` yields in this order; returns the file's size
    in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in data:
            file.write(part)
    return path.stat().st_size
