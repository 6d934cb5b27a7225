"""Above the limit the oldest spans are dropped, on disk, and counted in their place; nothing else is ever dropped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from parallel_core.observe import record_files
from parallel_core.observe import spool as spool_module
from parallel_core.observe.record_files import FileSink, last_of, segments
from parallel_core.observe.records import OMITTED, POINT
from parallel_core.observe.spool import Recorded, Spool, drop_spans
from tests.parallel_core.test_record_files import disk_of
from tests.spies import noting
from tests.workers.spooled import SEGMENT, SPANS, frames, others, record

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from parallel_core.observe.spool import Recorded, Spool

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before":
    Path.replace = killed
Spool(int(sys.argv[3])).bound([Recorded(Path(sys.argv[1]), {0: 0})])
killed()
"""


@pytest.fixture(autouse=True)
def _at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "LOOK_S", 0.0)


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


def settle_at(limit: int, *attempts: Recorded) -> None:
    spool = Spool(limit)
    for _ in range(50):
        spool.bound(attempts)


def waiting(folder: Path, *ranks: int) -> Recorded:
    """Ranks of which nothing was published, and which are still at work."""
    return Recorded(folder, dict.fromkeys(ranks or (0,), 0))


def test_the_oldest_spans_of_all_ranks_go_first_and_their_disk_is_free(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, rank)
    before, series = held(tmp_path), [others(tmp_path, rank) for rank in (0, 1)]
    blocks = sum(path.stat().st_blocks for path in tmp_path.iterdir())
    for rank in (0, 1):
        for at, (_, path) in enumerate(segments(tmp_path, rank)):
            os.utime(path, (at, at))  # the ranks wrote at the same time, not one after the other
    limit = before // 2
    settle_at(limit, waiting(tmp_path, 0, 1))
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
    settle_at(held(tmp_path), waiting(tmp_path))
    assert [path.read_bytes() for _, path in segments(tmp_path, 0)] == whole


def test_the_segment_that_the_rank_writes_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path)
    newest = segments(tmp_path, 0)[-1][1].read_bytes()
    with caplog.at_level(logging.WARNING):
        settle_at(1, waiting(tmp_path))
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
        settle_at(limit, waiting(tmp_path))
        have, dropped = steps_of(tmp_path)
    assert dropped and held(tmp_path) <= limit, "the next life goes on, and leaves nothing of the torn one"


def test_a_disk_that_takes_nothing_more_loses_nothing(tmp_path: Path) -> None:
    record(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with disk_of(100), pytest.raises(OSError, match="File too large"):
        Spool(1).bound([waiting(tmp_path)])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_segment_that_cannot_be_rewritten_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of large other records on a nearly full disk, where most others would free megabytes for kilobytes."""
    record(tmp_path)
    bad, limit, asked = segments(tmp_path, 0)[0][1], held(tmp_path) // 2, []

    def drop(path: Path, base: int) -> int:
        asked.append(path)
        if path == bad:
            raise OSError("no space left")
        return drop_spans(path, base)

    monkeypatch.setattr(spool_module, "drop_spans", drop)
    spool = Spool(limit)
    with pytest.raises(OSError, match="no space left"):
        spool.bound([waiting(tmp_path)])
    assert asked[0] == bad and held(tmp_path) <= limit
    record(tmp_path, rank=1)
    spool._due = float("-inf")
    del asked[:]
    spool.bound([waiting(tmp_path, 0, 1)])
    assert asked and asked[0] != bad, "those that failed come last"


def test_the_only_file_of_an_attempt_that_is_over_is_shortened_in_little_memory(tmp_path: Path) -> None:
    """Files of attempts that an older version began have any size."""
    sink = FileSink(tmp_path, 0)
    for step in range(20):
        sink.emit("spans", bytes(1 << 20), step=step, count=9, total=9)
        sink.emit("points", np.zeros(10, POINT).tobytes(), series=[["loss", 10]])
    series, before = others(tmp_path), held(tmp_path)
    settle_at(1, waiting(tmp_path))
    assert held(tmp_path) == before, "the rank may still write it"
    tracemalloc.start()
    settle_at(1, Recorded(tmp_path, {0: 0}, over=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert held(tmp_path) < 20_000 and others(tmp_path) == series
    assert steps_of(tmp_path) == ([], [(step, 9) for step in range(20)])


def test_what_was_published_goes_first(tmp_path: Path) -> None:
    """The attempt that was published is the younger one."""
    old, young = tmp_path / "old", tmp_path / "young"
    for folder in (old, young):
        folder.mkdir()
        record(folder)
    limit, whole = held(old) + 3 * SEGMENT, held(old)
    settle_at(limit, waiting(old), Recorded(young, {0: 1 << 40}, over=True, sent=True))
    assert held(old) == whole
    have, dropped = steps_of(young)
    assert have and len(dropped) > 200, "no more than necessary"


@pytest.mark.parametrize("published", [True, False])
def test_spans_do_not_go_for_what_was_published_and_cannot_go(tmp_path: Path, published: bool) -> None:
    """Profiles wait on the disk until their run has ended. Not published, they have a claim on the disk."""
    profiled, traced = tmp_path / "profiled", tmp_path / "traced"
    for folder in (profiled, traced):
        folder.mkdir()
    sink = FileSink(profiled, 0, SEGMENT)
    for part in range(60):
        sink.emit("profile", bytes(SEGMENT), step=1, part=part, of=60, size=60 * SEGMENT)
    record(traced)
    limit = held(traced) + 4 * SEGMENT
    assert held(profiled) > limit
    settle_at(limit, Recorded(profiled, {0: 1 << 40 if published else 0}), waiting(traced))
    assert bool(steps_of(traced)[1]) != published
    assert [len(f.blob) for f in frames(profiled)] == [SEGMENT] * 60


def test_a_look_lists_each_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        record(tmp_path, rank, steps=30)
    listed: list[Path] = []
    monkeypatch.setattr(record_files.os, "scandir", noting(os.scandir, listed, lambda folder: folder))
    monkeypatch.setattr(Path, "glob", None)
    Spool(1 << 40).bound([waiting(tmp_path, *range(4))])
    assert listed == [tmp_path]


def test_a_segment_without_spans_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path)
    spool, asked = Spool(1), []
    spool.bound([waiting(tmp_path)])

    class Entry:
        def __init__(self, path: Path) -> None:
            self.path = str(path)

        def stat(self) -> os.stat_result:
            asked.append(self.path)
            return Path(self.path).stat()

    found = segments(tmp_path, 0)
    listed = {0: [(base, Entry(path)) for base, path in found]}
    monkeypatch.setattr(spool_module, "segments_by_rank", lambda folder: listed)
    spool.bound([waiting(tmp_path)])
    assert len(found) > 20 and asked == [str(found[-1][1])], "the one that the rank writes"
