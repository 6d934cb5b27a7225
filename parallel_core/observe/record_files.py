"""The file that a rank appends its records to (`observe.records` says what is in them), written and read.

Each rank appends *frames* to its own `events-<rank>.bin` in the folder of its attempt. This file is the only way in
which records are passed on: it survives the death of every process, the worker's relay reads it from a byte offset
(which is also the cursor stored in the database), and `python -m parallel_core train` writes the same file without a
dashboard.

The stream of records goes on in a new file (*segment*) now and then: `events-<rank>.<base>.bin` begins with byte `base`
of the stream. Segments that are full are never written again by the rank, so that its worker, or `train`, can replace
one by a shorter one (observe.spool) when there is no room for all spans. Offsets in the stream stay as they were:
an `omitted` record takes the place of the frames that are gone, and says at which offset the next frame begins.

A frame = magic `TY` (2 bytes), header length (u4 LE), blob length (u4 LE), header (JSON, UTF-8), blob (raw bytes).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Protocol

from parallel_core.atomic_file import NO_SPACE

MAGIC = b"TY"
_HEAD = struct.Struct("<2sII")
_EVENTS = re.compile(r"events-(?P<rank>\d+)(\.(?P<base>\d+))?\.bin", re.ASCII)
LAST_WINDOW = 1 << 20
"""Bytes at the end of a rank's file in which `last_of` looks for the record of how the rank ended."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame; `end` is the byte offset of its end in the stream that it was read from, `size` its bytes."""

    header: dict[str, Any]
    blob: bytes
    end: int
    size: int = 0

    @property
    def kind(self) -> str:
        return str(self.header["kind"])


class Sink(Protocol):
    """Receives the records of a rank."""

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        """Adds a record of a kind, with the keys that `observe.records` lists for it. Raises OSError if it cannot be
        written, as on a full disk; nothing of it is there then."""


class FileSink:
    """Appends frames to a rank's events. An `emit` is usually one write(), so a kill leaves at most one torn frame.

    If a write is short, as on a full disk, the rest is written next; if that fails, the file is truncated to before the
    frame, as readers stop at a torn frame and would miss everything appended after it.
    """

    def __init__(self, folder: Path, rank: int, segment: int | None = None) -> None:
        """`segment`: bytes after which the stream goes on in a new file, if there is room for one more; None = all of
        it in one."""
        self.rank = rank
        self._folder, self._segment, self._base = folder, segment, 0
        self._file: IO[bytes] = events_path(folder, rank).open("ab", buffering=0)
        self._alone = threading.Lock()  # checkpoint records are emitted by another thread

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        rest = memoryview(encode({"kind": kind, "rank": self.rank, "t": time.time(), **header}, blob))
        with self._alone:
            begin = self._file.seek(0, os.SEEK_END)
            if self._segment is not None and begin >= self._segment and self._goes_on_at(self._base + begin):
                begin = 0
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(begin)
                raise

    def _goes_on_at(self, base: int) -> bool:
        """Begins a new file. Returns False where there is no room for one: without inodes, this one can still grow."""
        try:
            following = events_path(self._folder, self.rank, base).open("ab", buffering=0)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return False
        self._file.close()
        self._file, self._base = following, base
        return True

    def close(self) -> None:
        self._file.close()


def events_path(folder: Path, rank: int, base: int = 0) -> Path:
    """The file of a rank's events that begins with byte `base` of their stream."""
    return folder / (f"events-{rank}.{base}.bin" if base else f"events-{rank}.bin")


def segments(folder: Path, rank: int) -> list[tuple[int, Path]]:
    """(offset of its first byte in the stream, file) of each file of a rank's events, in order."""
    return [(base, Path(entry)) for base, entry in segments_by_rank(folder).get(rank, [])]


def segments_by_rank(folder: Path) -> dict[int, list[tuple[int, os.DirEntry[str]]]]:
    """rank -> (offset of its first byte in the stream, file) of each file of its events, in order; {} without a folder.

    Reads the folder once, however many ranks and files it has."""
    found: dict[int, list[tuple[int, os.DirEntry[str]]]] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if name := _EVENTS.fullmatch(entry.name):
                found.setdefault(int(name["rank"]), []).append((int(name["base"] or 0), entry))
    return {rank: sorted(files, key=itemgetter(0)) for rank, files in found.items()}


def log_path(folder: Path, rank: int) -> Path:
    """The file that the rank's stdout and stderr are written to, in order."""
    return folder / f"log-{rank}.txt"


def encode(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """The bytes of a frame, as the top of this file describes it."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    return _HEAD.pack(MAGIC, len(head), len(blob)) + head + blob


def decode(data: bytes | memoryview, base: int = 0) -> Iterator[Frame]:
    """Yields the whole frames in `data`, which starts at byte `base` of its stream; stops at a torn frame at the end.

    If `base` is inside what an `omitted` record stands for, `data` may start with that record.

    Raises ValueError if the bytes at a frame boundary are not a frame.
    """
    at, view = 0, memoryview(data)
    while at + _HEAD.size <= len(view):
        head, blob = _sizes(view[at : at + _HEAD.size], base)
        start = at + _HEAD.size
        end = start + head + blob
        if end > len(view):
            return
        header, base = _header(bytes(view[start : start + head]), base, end - at)
        yield Frame(header, bytes(view[start + head : end]), base, end - at)
        at = end


def read_stream(folder: Path, rank: int) -> Iterator[Frame]:
    """Yields the whole frames of all files of a rank's events, in order."""
    for base, path in segments(folder, rank):
        yield from read_frames(path, base=base)


def read_frames(path: Path, block: int = 1 << 24, base: int = 0) -> Iterator[Frame]:
    """Yields the whole frames of a rank's file, which begins at byte `base` of their stream, as `decode`; none if there
    is no file. Reads about `block` bytes at a time."""
    if not path.exists():
        return
    with path.open("rb") as file:
        end, size = base, block
        while data := file.read(size):
            whole = 0
            for frame in decode(data, end):
                end, whole = frame.end, whole + frame.size
                yield frame
            if not whole and len(data) < size:
                return  # a torn frame
            size = block if whole else 2 * size
            file.seek(whole - len(data), os.SEEK_CUR)


def skim(file: IO[bytes], base: int = 0) -> Iterator[Frame]:
    """As `decode` of a whole `file`, but with empty blobs: only headers are read, so its size does not matter. Whoever
    iterates may read elsewhere in `file`."""
    at, length = 0, file.seek(0, os.SEEK_END)
    while at + _HEAD.size <= length:
        file.seek(at)
        head, blob = _sizes(file.read(_HEAD.size), base)
        size = _HEAD.size + head + blob
        if at + size > length:
            return
        header, base = _header(file.read(head), base, size)
        yield Frame(header, b"", base, size)
        at += size


def _sizes(head: bytes | memoryview, at: int) -> tuple[int, int]:
    """Bytes of header and blob of the frame that begins at byte `at` of its stream. Raises ValueError if none does."""
    magic, header, blob = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ValueError(f"not a record frame at byte {at}")
    return header, blob


def _header(data: bytes, at: int, size: int) -> tuple[dict[str, Any], int]:
    """The header of the frame of `size` bytes at byte `at` of its stream, and the offset at which the next one begins.

    Raises ValueError if it is no header, also where its `end` is no offset behind it: readers would not get on."""
    try:
        header = json.loads(data)
    except RecursionError:
        header = None
    if not isinstance(header, dict) or "kind" not in header:
        raise ValueError(f"the frame at byte {at} has no header")
    end = header.get("end", at + size) if header["kind"] == "omitted" else at + size
    if type(end) is not int or not at < end < 1 << 63:
        raise ValueError(f"the frame at byte {at} cannot end at {end!r}")
    return header, end


def last_of(folder: Path, rank: int, kind: str) -> dict[str, Any] | None:
    """The header of the last frame of `kind` within LAST_WINDOW of the end of a rank's events; None without one."""
    window = LAST_WINDOW
    for _, path in reversed(segments(folder, rank)):
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - window))
            data = file.read()
            window -= len(data)
            if (found := _last_in(data, kind)) is not None:
                return found
        if window <= 0:
            break
    return None


def _last_in(data: bytes, kind: str) -> dict[str, Any] | None:
    """Raises ValueError if what precedes the word is no frame."""
    begin = data.rfind(b'{"kind":"%s"' % kind.encode()) - _HEAD.size
    return next((frame.header for frame in decode(data[begin:])), None) if begin >= 0 else None
