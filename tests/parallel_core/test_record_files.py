"""A rank's records remain readable up to the last complete frame, even if a write fails or is cut short."""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from parallel_core.observe.record_files import (
    MAGIC,
    FileSink,
    Frame,
    decode,
    encode,
    events_path,
    last_of,
    read_frames,
    read_stream,
    segments,
    segments_by_rank,
    skim,
)
from tests.parallel_core.frames import read_file

Reader = Callable[[bytes, int], list[Frame]]
READERS: list[Reader] = [
    lambda data, base: list(decode(data, base)),
    lambda data, base: list(skim(io.BytesIO(data), base)),
]


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


def test_a_stream_goes_on_in_new_files_and_its_last_records_are_found(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, 1, segment=200)
    sink.emit("phase", b"x" * 300, phase="timed", step=0)
    sink.emit("fault", message="why")
    sink.emit("phase", b"x" * 300, phase="done", step=1)
    sink.emit("exit", code=3)
    FileSink(tmp_path, 10).emit("exit", code=4)
    found = segments(tmp_path, 1)
    assert len(found) == 3 and found[0] == (0, events_path(tmp_path, 1))
    ends = [frame.end for base, path in found for frame in decode(path.read_bytes(), base)]
    assert len(ends) == 4 and [base for base, _ in found[1:]] == [ends[0], ends[2]]
    for kind, key, value in (("exit", "code", 3), ("fault", "message", "why")):
        header = last_of(tmp_path, 1, kind)
        assert header is not None and header[key] == value
    assert last_of(tmp_path, 1, "summary") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_stream_stays_in_its_file_where_there_is_no_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A disk without inodes takes what is appended all the same."""
    sink = FileSink(tmp_path, 1, segment=200)
    sink.emit("phase", b"x" * 300, phase="timed", step=0)

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with nullcontext() if number == errno.ENOSPC else pytest.raises(OSError, match=os.strerror(number)):
            sink.emit("fault", message="why")
    sink.emit("exit", code=3)
    assert len(segments(tmp_path, 1)) == 2
    kinds = [frame.kind for frame in read_stream(tmp_path, 1)]
    assert kinds == ["phase", *(["fault"] if number == errno.ENOSPC else []), "exit"]


def test_the_last_record_is_found_whatever_its_length_looks_like(tmp_path: Path) -> None:
    """The bytes of a length may be those with which a frame begins."""
    length = int.from_bytes(MAGIC, "little")
    shortest = len(encode({"kind": "fault", "rank": 0, "t": 0.5, "message": ""})) - len(encode({})) + 2
    data = encode({"kind": "fault", "rank": 0, "t": 0.5, "message": "x" * (length - shortest)})
    assert data.find(MAGIC, 1) == 2, "in the length of the header"
    events_path(tmp_path, 0).write_bytes(encode({"kind": "phase"}) + data)
    found = last_of(tmp_path, 0, "fault")
    assert found is not None and len(found["message"]) == length - shortest


def test_a_file_is_read_in_blocks_that_may_be_smaller_than_a_frame(tmp_path: Path) -> None:
    data = b"".join(encode({"kind": "spans", "step": step}, bytes(range(10 * step))) for step in range(9))
    omitted = encode({"kind": "omitted", "end": 5_000})
    path, data = tmp_path / "events", data + omitted + encode({"kind": "exit"})
    expected = list(decode(data))
    for torn in (0, 5, 20):
        path.write_bytes(data + encode({"kind": "phase"})[:torn])
        for block in (1, 64, 300, 1 << 20):
            assert list(read_frames(path, block)) == expected
    assert list(read_frames(tmp_path / "nothing")) == []
    path.write_bytes(data + bytes(50))
    with pytest.raises(ValueError, match="not a record"):
        list(read_frames(path, 64))


def test_an_omitted_record_stands_for_more_bytes_than_its_own() -> None:
    gone = encode({"kind": "omitted", "rank": 0, "t": 0.0, "end": 5000})
    after = encode({"kind": "phase", "rank": 0, "t": 0.0})
    for base in (1000, 4990):  # 4990: from inside what it stands for
        assert [(frame.kind, frame.end) for frame in decode(gone + after, base)] == [
            ("omitted", 5000),
            ("phase", 5000 + len(after)),
        ]


def test_skimming_finds_the_same_frames_without_their_blobs() -> None:
    phase = encode({"kind": "phase", "rank": 0, "t": 0.0}, b"x" * 100)
    gone = encode({"kind": "omitted", "rank": 0, "t": 0.0, "end": 5000}, b"y" * 8)
    data = phase + gone + phase + phase
    for torn in (0, 1, 99, len(phase) - 1):
        data = data[: len(data) - torn]
        file, found = io.BytesIO(data), []
        for frame in skim(file, 1000):
            found.append((frame.header, frame.end, frame.size))
            file.seek(3)  # whoever iterates may read elsewhere
        assert found == [(frame.header, frame.end, frame.size) for frame in decode(data, 1000)]
        assert found


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("end", [None, "x", [], {}, float("inf"), float("nan"), 1e400, 2.5, 6, 7, -1, True, 1 << 63])
def test_an_omitted_record_ends_behind_its_beginning(read: Reader, end: Any) -> None:
    """Readers that only a ValueError stops would otherwise begin again for ever."""
    with pytest.raises(ValueError, match="the frame at byte 7 cannot end at"):
        read(encode({"kind": "omitted", "rank": 0, "t": 0.0, "end": end}), 7)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("header", [{"rank": 0}, "x", None])
def test_a_header_has_a_kind(read: Reader, header: Any) -> None:
    with pytest.raises(ValueError, match="the frame at byte 7 has no header"):
        read(encode(header), 7)


@pytest.mark.parametrize("read", READERS)
def test_a_header_is_not_nested_without_end(read: Reader) -> None:
    deep = b"[" * 200_000
    data = encode({"kind": "x"}).replace(b'{"kind":"x"}', deep).replace(b"\x0c\0\0\0", len(deep).to_bytes(4, "little"))
    with pytest.raises(ValueError, match=r"the frame at byte 7 has no header"):
        read(data, 7)


def test_the_files_of_all_ranks_are_listed_together(tmp_path: Path) -> None:
    names = ["events-0.bin", "events-0.900.bin", "events-0.1000.bin", "events-10.bin", "events-0.bin.part", "log-0.txt"]
    for name in names:
        (tmp_path / name).touch()
    found = {rank: [(base, file.name) for base, file in files] for rank, files in segments_by_rank(tmp_path).items()}
    assert found == {0: list(zip((0, 900, 1000), names, strict=False)), 10: [(0, "events-10.bin")]}
    assert segments_by_rank(tmp_path / "none") == {} and segments(tmp_path, 1) == []


def test_a_frame_without_a_header_is_none() -> None:
    with pytest.raises(ValueError, match="the frame at byte 7 has no header"):
        list(decode(encode([]), 7))  # type: ignore[arg-type]
