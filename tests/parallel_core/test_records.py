"""A rank's records remain readable up to the last complete frame, even if a write fails or is cut short."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parallel_core.observe.records import FileSink, events_path, read_file


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Limits files to `size` bytes: a write stores what still fits, and the next one fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_frame_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    sink, path = FileSink(tmp_path, 0), events_path(tmp_path, 0)
    sink.emit("phase", phase="building", step=0)
    whole = path.stat().st_size
    with disk_of(whole + 100), pytest.raises(OSError, match="File too large"):
        sink.emit("spans", b"x" * 1000, step=1)
    assert path.stat().st_size == whole
    sink.emit("phase", phase="done", step=2)
    assert [(frame.kind, frame.header["step"]) for frame in read_file(path)] == [("phase", 0), ("phase", 2)]


def test_the_rest_of_a_short_write_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, path = FileSink(tmp_path, 0), events_path(tmp_path, 0)

    class Short:
        """The rank's file, but each write takes only seven bytes."""

        def __init__(self) -> None:
            self.file = sink._file

        def seek(self, *place: int) -> int:
            return self.file.seek(*place)

        def write(self, data: memoryview) -> int:
            return self.file.write(data[:7])

    monkeypatch.setattr(sink, "_file", Short())
    sink.emit("spans", b"x" * 100, step=1)
    sink.emit("phase", phase="done", step=2)
    first, second = read_file(path)
    assert (first.kind, first.blob) == ("spans", b"x" * 100)
    assert (second.kind, second.header["step"]) == ("phase", 2)
