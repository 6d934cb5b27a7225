"""Files are cut where the contract requires it, incomplete frames are not sent, and long logs are capped with a
notice.
"""

from __future__ import annotations

from pathlib import Path

from parallel_core.observe import records
from workers.tail import EventTail, LogTail, Tail


def read_all(tail: Tail, final: bool = True) -> list[bytes]:
    pieces, at = [], 0
    while piece := tail.read(at, final):
        pieces.append(piece)
        at += len(piece)
    return pieces


def events(tmp_path: Path, sizes: list[int], torn: bytes = b"") -> tuple[EventTail, bytes]:
    data = b"".join(records.encode({"kind": "phase", "rank": 0, "t": 0.0}, bytes(size)) for size in sizes)
    path = tmp_path / "events-0.bin"
    path.write_bytes(data + torn)
    return EventTail(path, limit=1000), data


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert not EventTail(tmp_path / "none").read(0, final=True)
    assert not LogTail(tmp_path / "none").read(0, final=True)


def test_batches_are_whole_frames_within_the_limit(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [300] * 10)
    pieces = read_all(tail)
    assert b"".join(pieces) == data
    assert len(pieces) == 5
    assert all(len(piece) <= 1000 and len(list(records.decode(piece))) == 2 for piece in pieces)


def test_a_frame_over_the_limit_goes_whole(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10, 5000, 10])
    pieces = read_all(tail)
    assert b"".join(pieces) == data
    assert [len(list(records.decode(piece))) for piece in pieces] == [1, 1, 1]


def test_a_torn_frame_is_never_read(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10, 10], torn=records.encode({"kind": "x"}, bytes(50))[:-1])
    assert b"".join(read_all(tail)) == data


def test_what_is_no_frame_ends_the_stream(tmp_path: Path) -> None:
    tail, data = events(tmp_path, [10], torn=b"no frame at all" * 10)
    assert b"".join(read_all(tail)) == data


def test_a_log_is_streamed_up_to_half_its_limit_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"x" * 900)
    assert len(b"".join(read_all(LogTail(path, limit=100, most=1000), final=False))) == 500


def test_a_log_within_its_limit_arrives_whole(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(bytes(range(250)) * 4)
    assert b"".join(read_all(LogTail(path, limit=100, most=1000))) == path.read_bytes()


def test_a_longer_log_is_head_word_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"h" * 2000 + b"t" * 3000)
    got = b"".join(read_all(LogTail(path, limit=70, most=1000)))
    assert got.startswith(b"h" * 500 + b"\n[... 1000 of 5000 bytes are kept; here 4000 are left out ...]\n")
    assert got.endswith(b"\n" + b"t" * 500)
    assert got.count(b"t" * 500) == 1
