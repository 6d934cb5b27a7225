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
        assert tail.read(len(begun), final=False) == b""
        assert whole.endswith(path.read_bytes()[-50:])


def test_a_longer_log_is_head_word_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "log-0.txt"
    path.write_bytes(b"h" * 2000 + b"t" * 3000)
    got = b"".join(read_all(LogTail(path, limit=70, most=1000)))
    left_out = b"[... 1000 of 5000 bytes are kept; here 4000 are left out ...]\n"
    assert got.startswith(b"h" * 500 + FIRST_HALF + left_out)
    assert got.endswith(b"\n" + b"t" * 500)
    assert got.count(b"t" * 500) == 1
