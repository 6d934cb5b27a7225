"""torch.profiler on chosen steps of our own run: the traces arrive as records, and their steps are read back with
certainty.
"""

from __future__ import annotations

import gzip
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from parallel_core.analysis.step_waits import StepWaits
from parallel_core.engine import pieces, profiled, step_times
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.step_times import StepTimes
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, Frame, events_path
from parallel_core.observe.records import SPAN
from parallel_core.outcome import waits
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec, field_errors
from parallel_core.traces.__main__ import read_all
from parallel_core.traces.stream import EventStream
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_trainer import frames, series, spec_of

PROFILED = {"profile_steps": [4, 5], "profile_ranks": [1]}


def traces(seen: list[Frame]) -> dict[int, bytes]:
    """Step -> gzipped Chrome trace."""
    out: dict[int, bytes] = {}
    for frame in seen:
        if frame.kind == "profile":
            out[frame.header["step"]] = out.get(frame.header["step"], b"") + frame.blob
    return out


def test_no_step_is_profiled_by_default() -> None:
    assert not any(profiled.is_profiled(RunSpec(), step, 0) for step in range(43))


def test_chosen_steps_of_chosen_ranks_are_profiled_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    spec = spec_of(trace=PROFILED, train={"steps": 6}, pp=2, micro_batches=2)
    first, second = frames(spec, tmp_path)
    plain, _ = frames(spec_of(train={"steps": 6}, pp=2, micro_batches=2), tmp_path / "plain")
    assert series(first, "loss")["value"].tolist() == series(plain, "loss")["value"].tolist()
    assert not traces(first)
    found = traces(second)
    assert sorted(found) == [4, 5]
    for step, data in found.items():
        events = json.loads(gzip.decompress(data))["traceEvents"]
        names = {event.get("name") for event in events}
        assert {f"ProfilerStep#{step}", "1F0", "1BW1"} <= names
    (tmp_path / "rank1.json.gz").write_bytes(found[4])
    job = read_all([("rank1.json.gz", tmp_path / "rank1.json.gz")])
    rows = job.ranks[1].steps[4]
    assert set(rows["micro_batch"][rows["kind"] == Kind.F].tolist()) >= {0, 1}
    assert set(rows["stage"][rows["micro_batch"] >= 0].tolist()) == {1}
    assert (rows["kind"] == Kind.OPT_STEP).any()
    assert any(note.startswith("Certain: stages") for note in job.notes)


def test_the_step_s_span_ends_before_its_profile_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(trace={"profile_steps": [4], "trace_every": 4}, train={"steps": 6})
    begun, write = list[int](), profiled.emit

    def emit(*given: Any) -> None:
        begun.append(time.monotonic_ns())
        write(*given)

    monkeypatch.setattr(profiled, "emit", emit)
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    seen = read_file(events_path(tmp_path, 0))
    spans = next(frame for frame in seen if frame.kind == "spans" and frame.header["step"] == 4)
    (step,) = (row for row in np.frombuffer(spans.blob, SPAN) if row["kind"] == Kind.STEP)
    (written,) = begun
    assert step["end"] < written
    sums = StepWaits.chain([*waits(seen)]).sums
    assert sums["total"][sums["step"] == 4].tolist() == [step["end"] - step["start"]]


def test_the_time_to_write_a_profile_is_that_of_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an hour, by the clock of steps."""
    spec = spec_of(trace={"profile_steps": [4]}, train={"steps": 6})
    clock, write = SlowClock(), profiled.emit

    def emit(*given: Any) -> None:
        clock.late_s += 3600
        write(*given)

    monkeypatch.setattr(profiled, "emit", emit)
    monkeypatch.setattr(step_times, "time", clock)
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    seen = read_file(events_path(tmp_path, 0))
    times = series(seen, "step_time")
    assert clock.late_s == 3600 and times["step"].tolist() == list(range(6))
    assert times["value"].max() < 3600


class SlowClock:
    """The module `time`, whose performance counter is `late_s` ahead."""

    late_s = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.late_s


def _watched(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[list[int], list[int]]:
    """When a profile was written, and when the rank began to measure another step."""
    written, begun = list[int](), list[int]()
    write, restart = profiled.emit, StepTimes.restart

    def emit(*given: Any) -> None:
        time.sleep(0.2)
        write(*given)
        written.append(time.monotonic_ns())

    def noted(times: StepTimes) -> None:
        restart(times)
        begun.append(time.monotonic_ns())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiled, "emit", emit)
        patch.setattr(StepTimes, "restart", noted)
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    return written, begun


def test_other_ranks_do_not_wait_for_a_profile_within_their_next_step(tmp_path: Path) -> None:
    step = 4
    spec = spec_of(trace={"profile_steps": [step], "profile_ranks": [1]}, train={"steps": 6}, pp=2, micro_batches=2)
    (none, begun), ((written,), _) = ranks.run(spec, _watched, tmp_path)
    assert not none and len(begun) == 1 + 6, "once where the timed steps begin, and after each step"
    assert sum(at < written for at in begun) == 1 + step


class Heard:
    """A sink that keeps what is emitted."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, Any], bytes]] = []

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        self.told.append((header, blob))


def test_a_trace_goes_in_pieces_and_one_that_is_too_large_as_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    data = bytes(range(256)) * 2000
    pieces.emit("profile", 7, data, heard)
    assert [header["part"] for header, _ in heard.told] == list(range(heard.told[0][0]["of"]))
    assert b"".join(blob for _, blob in heard.told) == data
    monkeypatch.setattr(pieces, "MAX_PROFILE_BYTES", 10)
    heard = Heard()
    pieces.emit("profile", 7, data, heard)
    assert heard.told == [({"step": 7, "part": 0, "of": 0, "size": len(data)}, b"")]


@pytest.mark.parametrize(
    ("trace", "field", "words"),
    [
        ({"profile_steps": [99]}, "trace.profile_steps", "which is 11; use profile_steps=11 or less"),
        ({"profile_steps": [1], "profile_ranks": [3]}, "trace.profile_ranks", "use profile_ranks=0"),
        ({"profile_steps": [-1]}, "trace.profile_steps.0", "at least 0"),
    ],
)
def test_steps_and_ranks_that_are_not_there_are_named(trace: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec_of(trace=trace)
    assert words in field_errors(caught.value)[field]


def test_a_stream_is_read_from_anything_that_reads() -> None:
    assert list(EventStream(io.BytesIO(b'[{"ph": "X"}]'))) == [{"ph": "X"}]
