"""Files are cut where the contract requires it, incomplete frames are not sent, and long logs are capped with a
notice.
"""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import NoReturn

import pytest

from parallel_core.observe import event_tail as tail_module
from parallel_core.observe import record_files, records
from parallel_core.observe.event_tail import EventTail
from parallel_core.observe.spool import drop_spans
from workers.tail import LogTail, Tail


def read_all(tail: Tail, final: bool = True) -> list[bytes]:
    pieces, at = [], 0
    while (piece := tail.read(at, final)).data:
        pieces.append(piece.data)
        at = piece.end
    return pieces


def events(tmp_path: Path, sizes: list[int], torn: bytes = b"") -> tuple[EventTail, bytes]:
    data = b"".join(record_files.encode({"kind": "phase", "rank": 0, "t": 0.0}, bytes(size)) for size in sizes)
    record_files.events_path(tmp_path, 0).write_bytes(data + torn)
    return EventTail(tmp_path, 0, limit=1000), data


def test_a_disk_that_fails_does_not_end_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"the rest")

    def fails(_: Path) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "stat", fails)
        with pytest.raises(OSError, match="Input/output error"):
            LogTail(path).read(0, final=True)
    assert LogTail(path).read(0, final=True).data == b"the rest"


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert not EventTail(tmp_path / "none", 0).read(0, final=True).data
    assert not LogTail(tmp_path / "none").read(0, final=True).data


def test_batches_are_whole_frames_within_the_limit(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [300] * 10)
    pieces = read_all(tail)
    assert b"".join(pieces) == data
    assert len(pieces) == 5
    assert all(len(piece) <= 1000 and len(list(record_files.decode(piece))) == 2 for piece in pieces)


def test_a_frame_over_the_limit_goes_whole(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10, 5000, 10])
    pieces = read_all(tail)
    assert b"".join(pieces) == data
    assert [len(list(record_files.decode(piece))) for piece in pieces] == [1, 1, 1]


def test_a_torn_frame_is_never_read(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10, 10], torn=record_files.encode({"kind": "x"}, bytes(50))[:-1])
    assert b"".join(read_all(tail)) == data


def test_what_is_no_frame_ends_the_stream(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10], torn=b"no frame at all" * 10)
    assert b"".join(read_all(tail)) == data


def traced(folder: Path, steps: int, segment: int = 1000) -> int:
    """Writes a frame of spans for each step, and one of another kind for three, in segments; returns the length of the
    stream."""
    sink = record_files.FileSink(folder, 0, segment)
    for step in range(steps):
        sink.emit("spans", bytes(300), step=step, count=5, total=7)
        if step % 3 == 2:
            sink.emit("phase", phase="timed", step=step)
    sink.close()
    base, last = record_files.segments(folder, 0)[-1]
    return base + last.stat().st_size


def test_the_segments_of_a_rank_are_one_stream(tmp_path: Path) -> None:
    length = traced(tmp_path, 20)
    found = record_files.segments(tmp_path, 0)
    assert len(found) > 2
    tail = EventTail(tmp_path, 0, limit=500)
    whole = b"".join(path.read_bytes() for _, path in found)
    assert b"".join(read_all(tail)) == whole and len(whole) == length
    middle = found[1][0]
    assert tail.read(middle, final=True).data == whole[middle : tail.read(middle, final=True).end], "again, from before"


def test_a_segment_without_its_spans_is_read_at_the_same_offsets(tmp_path: Path) -> None:
    length, tail = traced(tmp_path, 20, segment=2000), EventTail(tmp_path, 0, limit=400)
    boundaries = [0]
    while (piece := tail.read(boundaries[-1], final=True)).data:
        boundaries.append(piece.end)
    (_, first), (base, second), *_ = record_files.segments(tmp_path, 0)
    begun = tail.read(base, final=True)
    assert drop_spans(first, 0) > 0 and drop_spans(second, base) > 0
    after = tail.read(begun.end, final=True)
    assert after.data and begun.end < after.end, "goes on in the file that took the place of the one it read"
    for start in boundaries:
        at, kinds = start, []
        while (piece := tail.read(at, final=True)).data:
            frames = list(record_files.decode(piece.data, at))
            assert frames[-1].end == piece.end
            kinds += [frame.kind for frame in frames]
            at = piece.end
        assert at == length
        assert kinds.count("phase") == sum(1 for at in phases(tmp_path) if at > start)


def test_what_waits_is_read_again_without_a_search(tmp_path: Path) -> None:
    """While the broker is away the relay reads the same bytes again and again: what is before them must not be read,
    which would take a rank's time.
    """
    traced(tmp_path, 30, segment=8000)
    path, tail = record_files.events_path(tmp_path, 0), EventTail(tmp_path, 0, limit=200)
    assert drop_spans(path, 0) > 0
    first = tail.read(0, final=True)
    waits = tail.read(first.end, final=True)
    with path.open("r+b") as file:  # what is before is not even records any more
        file.write(bytes(len(first.data)))
    assert waits.data and tail.read(first.end, final=True) == waits
    assert tail.read(waits.end, final=True).data
    assert EventTail(tmp_path, 0, limit=200).read(first.end, final=True) != waits, "a search would have failed"


def test_a_search_reads_headers_alone(tmp_path: Path) -> None:
    """Files of attempts that an older version began have any size."""
    sink = record_files.FileSink(tmp_path, 0)
    for step in range(8):
        sink.emit("spans", bytes(4 << 20), step=step, count=5, total=7)
    start = record_files.events_path(tmp_path, 0).stat().st_size
    sink.emit("phase", phase="done", step=8)
    tracemalloc.start()
    piece = EventTail(tmp_path, 0).read(start, final=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [frame.kind for frame in record_files.decode(piece.data)] == ["phase"]
    assert peak < 1 << 20


def test_a_record_that_readers_cannot_pass_ends_the_stream(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10], torn=record_files.encode({"kind": "omitted", "end": None}) * 10)
    assert b"".join(read_all(tail)) == data


def phases(folder: Path) -> list[int]:
    """Where the frames that are no spans end."""
    data = [(base, path.read_bytes()) for base, path in record_files.segments(folder, 0)]
    return [frame.end for base, some in data for frame in record_files.decode(some, base) if frame.kind == "phase"]


def test_a_batch_has_few_steps_without_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_OMITTED", 6 * records.OMITTED.itemsize)
    traced(tmp_path, 30, segment=8000)
    drop_spans(record_files.events_path(tmp_path, 0), 0)
    batches = [list(record_files.decode(piece)) for piece in read_all(EventTail(tmp_path, 0))]
    rows = [sum(len(frame.blob) for frame in batch if frame.kind == "omitted") for batch in batches]
    assert max(rows) == tail_module.MOST_OMITTED and sum(rows) > 2 * max(rows)


FIRST_HALF = b"\n[... the first 500 bytes end here; the end follows once the attempt has ended ...]\n"


def test_a_log_is_streamed_up_to_half_its_limit_while_it_grows_and_says_that_more_follows(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"x" * 500)
    assert b"".join(read_all(LogTail(path, limit=100, most=1000), final=False)) == b"x" * 500
    path.write_bytes(b"x" * 501)
    assert b"".join(read_all(LogTail(path, limit=100, most=1000), final=False)) == b"x" * 500 + FIRST_HALF


def test_a_log_within_its_limit_arrives_whole(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    for size in (250, 500, 750, 1000):
        path.write_bytes((bytes(range(250)) * 4)[:size])
        got = b"".join(read_all(LogTail(path, limit=100, most=1000)))
        assert got.replace(FIRST_HALF, b"") == path.read_bytes()
        assert got.count(FIRST_HALF) == (size > 500)


def test_what_was_published_while_a_log_grew_is_the_beginning_of_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    for last in (550, 999, 1000, 1001, 5000):
        path.write_bytes(bytes(range(200, 250)) * 11)
        begun = b"".join(read_all(LogTail(path, limit=70, most=1000), final=False))
        path.write_bytes((bytes(range(200, 250)) * 100)[:last])
        tail = LogTail(path, limit=70, most=1000)
        whole = b"".join(read_all(tail))
        assert whole.startswith(begun)
        assert tail.read(len(begun), final=False) == (b"", len(begun))
        assert whole.endswith(path.read_bytes()[-50:])


def test_a_longer_log_is_head_word_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"h" * 2000 + b"t" * 3000)
    got = b"".join(read_all(LogTail(path, limit=70, most=1000)))
    left_out = b"[... 1000 of 5000 bytes are kept; here 4000 are left out ...]\n"
    assert got.startswith(b"h" * 500 + FIRST_HALF + left_out)
    assert got.endswith(b"\n" + b"t" * 500)
    assert got.count(b"t" * 500) == 1
