"""Above the limit the oldest spans are dropped, on disk, and counted in their place; nothing else is ever dropped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parallel_core.observe.records import OMITTED, POINT, SPAN, FileSink, Frame, decode, events_path, last_of, segments
from tests.parallel_core.test_records import disk_of
from tests.workers.test_full_disk import DEVICES, message
from workers import spool as spool_module
from workers.attempt import Attempt
from workers.folder import Folder, Meta
from workers.relay import Relay
from workers.run_orders import read_order
from workers.settings import Settings
from workers.spool import Spool, segment_bytes, without_spans
from workers.wire import Publisher

SEGMENT = 16 << 10
SPANS = 40
ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from workers.spool import Spool

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before":
    Path.replace = killed
Spool(int(sys.argv[3])).bound([(Path(sys.argv[1]), 0)])
killed()
"""


@pytest.fixture(autouse=True)
def _at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "LOOK_S", 0.0)


def record(folder: Path, rank: int = 0, steps: int = 300) -> None:
    """Traces every step, and reports the points of ten at a time."""
    sink = FileSink(folder, rank, SEGMENT)
    for step in range(steps):
        sink.emit("spans", np.zeros(SPANS, SPAN).tobytes(), step=step, count=SPANS, total=SPANS + rank)
        if step % 10 == 9:
            sink.emit("points", np.zeros(10, POINT).tobytes(), series=[["loss", 10]])
    sink.emit("exit", code=0)
    sink.close()


def frames(folder: Path, rank: int = 0) -> Iterator[Frame]:
    for base, path in segments(folder, rank):
        yield from decode(path.read_bytes(), base)


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def steps_of(folder: Path, rank: int = 0) -> tuple[list[int], list[tuple[int, int]]]:
    """(steps with spans, (step, total) of those without), in the order of the stream."""
    have, dropped = [], []
    for frame in frames(folder, rank):
        if frame.kind == "spans":
            have.append(frame.header["step"])
        elif frame.kind == "omitted":
            dropped += np.frombuffer(frame.blob, OMITTED).tolist()
    return have, dropped


def others(folder: Path, rank: int = 0) -> list[tuple[object, bytes, int]]:
    return [(f.header, f.blob, f.end) for f in frames(folder, rank) if f.kind not in ("spans", "omitted")]


def settle_at(limit: int, *files: tuple[Path, int]) -> None:
    spool = Spool(limit)
    for _ in range(50):
        spool.bound(files)


def test_the_oldest_spans_of_all_ranks_go_first_and_their_disk_is_free(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, rank)
    before, series = held(tmp_path), [others(tmp_path, rank) for rank in (0, 1)]
    blocks = sum(path.stat().st_blocks for path in tmp_path.iterdir())
    for rank in (0, 1):
        for at, (_, path) in enumerate(segments(tmp_path, rank)):
            os.utime(path, (at, at))  # the ranks wrote at the same time, not one after the other
    limit = before // 2
    settle_at(limit, (tmp_path, 0), (tmp_path, 1))
    assert limit - 2 * SEGMENT < held(tmp_path) <= limit
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) < 0.6 * blocks
    for rank in (0, 1):
        have, dropped = steps_of(tmp_path, rank)
        assert [step for step, _ in dropped] + have == list(range(300))
        assert {total for _, total in dropped} == {SPANS + rank}
        assert 100 < len(dropped) < 200
        assert others(tmp_path, rank) == series[rank], "also at the same offsets"


def test_nothing_is_dropped_within_the_limit(tmp_path: Path) -> None:
    record(tmp_path)
    whole = [path.read_bytes() for _, path in segments(tmp_path, 0)]
    settle_at(held(tmp_path), (tmp_path, 0))
    assert [path.read_bytes() for _, path in segments(tmp_path, 0)] == whole


def test_the_segment_that_the_rank_writes_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path)
    newest = segments(tmp_path, 0)[-1][1].read_bytes()
    with caplog.at_level(logging.WARNING):
        settle_at(1, (tmp_path, 0))
    assert segments(tmp_path, 0)[-1][1].read_bytes() == newest
    have, dropped = steps_of(tmp_path)
    assert have and len(have) + len(dropped) == 300
    assert [line.message for line in caplog.records] == [
        line.message for line in caplog.records if "no more spans can go" in line.message
    ]
    assert len(caplog.records) == 1, "said once"
    assert last_of(tmp_path, 0, "exit") is not None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_killed_while_it_drops_leaves_every_record_once(tmp_path: Path, moment: str) -> None:
    """Killed before the shorter segment takes its place, or right after, before anything was published."""
    record(tmp_path)
    series, limit = others(tmp_path), held(tmp_path) - 3 * SEGMENT
    command = [sys.executable, "-c", KILLED, str(tmp_path), moment, str(limit)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    have, dropped = steps_of(tmp_path)
    assert bool(dropped) == (moment == "after")
    for _ in range(2):
        assert [step for step, _ in dropped] + have == list(range(300))
        assert others(tmp_path) == series
        settle_at(limit, (tmp_path, 0))
        have, dropped = steps_of(tmp_path)
    assert dropped and held(tmp_path) <= limit, "the next life goes on, and leaves nothing of the torn one"


def test_a_disk_that_takes_nothing_more_loses_nothing(tmp_path: Path) -> None:
    record(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with disk_of(100), pytest.raises(OSError, match="File too large"):
        Spool(1).bound([(tmp_path, 0)])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_relay_that_cannot_drop_says_so_once_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Spool):
        def bound(self, files: object) -> None:
            raise OSError("no space")

    relay = Relay(Publisher(Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)), spool=Broken(1))
    for _ in range(3):
        relay._bound()
    assert [line.message for line in caplog.records] == ["spans on disk cannot be dropped; the relay goes on"]


def test_a_record_of_omitted_steps_is_not_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MOST_ROWS", 4)
    sink = FileSink(tmp_path, 0)
    for step in range(10):
        sink.emit("spans", np.zeros(1, SPAN).tobytes(), step=step, count=1, total=1)
    sink.emit("spans", np.zeros(1, SPAN).tobytes(), step=10, contestant="of a benchmark with turns")
    data = events_path(tmp_path, 0).read_bytes()
    shorter, steps = without_spans(data, 0)
    assert steps == 10
    assert [len(f.blob) // OMITTED.itemsize for f in decode(shorter) if f.kind == "omitted"] == [4, 4, 2]
    assert [f.end for f in decode(shorter)][-1] == len(data)
    assert without_spans(shorter, 0) == (shorter, 0)


def test_what_steps_consisted_of_goes_with_their_spans(tmp_path: Path) -> None:
    """Also where no step was traced; nothing counts it in its place."""
    sink = FileSink(tmp_path, 0)
    for step in range(4):
        sink.emit("waits", bytes(48), steps=1)
        if step == 2:
            sink.emit("spans", np.zeros(1, SPAN).tobytes(), step=step, count=1, total=1)
    sink.emit("points", np.zeros(1, POINT).tobytes(), series=[["loss", 1]])
    sink.emit("waits", bytes(48), steps=1)
    data = events_path(tmp_path, 0).read_bytes()
    kinds = [f.kind for f in decode(data)]
    shorter, dropped = without_spans(data, 0)
    assert dropped == 6 and kinds.count("waits") == 5
    found = list(decode(shorter))
    assert [f.kind for f in found] == ["omitted", "points", "omitted"]
    assert [np.frombuffer(f.blob, OMITTED).tolist() for f in found[::2]] == [[(2, 1)], []]
    assert [f.end for f in found] == [f.end for f in decode(data)][4:]


def test_bytes_that_are_no_records_stay(tmp_path: Path) -> None:
    record(tmp_path, steps=5)
    data = events_path(tmp_path, 0).read_bytes() + b"no record at all" * 10
    shorter, steps = without_spans(data, 0)
    assert steps == 5 and shorter.endswith(b"no record at all" * 10)


def test_ranks_are_told_how_large_their_segments_are(tmp_path: Path) -> None:
    settings = Settings.from_env({"TRAINYARD_WORKER_NAME": "a", "TRAINYARD_SPOOL_BYTES": str(8 << 20)})
    folder, order = Folder.claim(tmp_path, 5), read_order(message(), "a", DEVICES)
    assert folder
    assert Attempt(folder, Meta(), order).start_order(settings)["segment"] == segment_bytes(8 << 20, 2) == 512 << 10


@pytest.mark.parametrize(
    ("limit", "ranks", "expected"), [(2 << 30, 8, 16 << 20), (64 << 20, 4, 2 << 20), (1, 4, 64 << 10)]
)
def test_segments_are_small_parts_of_the_limit(limit: int, ranks: int, expected: int) -> None:
    assert segment_bytes(limit, ranks) == expected
