"""Spans whose marks are CUDA events: read without a wait, and tied to the host's clock."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from parallel_core.engine.clocks import Clock
from parallel_core.engine.step_meter import StepMeter
from parallel_core.layout import Layout
from parallel_core.observe.cuda_recorder import CudaSpanRecorder
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.observe.recorder import LANE_COMPUTE
from parallel_core.outcome import waits
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_recorder import run_steps


class Gpu:
    """Events of the current stream happen when the test says so, those of another stream at once if it `answers`.

    `pauses`: names of calls, before the end of which the host's thread does not run for longer than a tie may take; it
    begins once the event of another stream has happened, or (query) just before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: list[Any] = []
        self.waited, self.made, self.asked, self.answers = 0, 0, 0, True
        self.pauses: list[str] = []
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: int | None = None
                gpu.made += 1

            def record(self, stream: object = None) -> None:
                self.at = time.monotonic_ns() if stream and gpu.answers and "query" not in gpu.pauses else None
                self.aside = stream is not None
                if not stream:
                    gpu.queued = [event for event in gpu.queued if event is not self] + [self]
                elif "record" in gpu.pauses:
                    gpu.pause("record")

            def query(self) -> bool:
                gpu.asked += not self.aside
                happened = self.at is not None
                if self.aside and "query" in gpu.pauses:
                    self.at = time.monotonic_ns()
                    gpu.pause("query")
                return happened

            def synchronize(self) -> None:
                if self.at is None:
                    gpu.waited += 1
                    gpu.work(gpu.queued.index(self) + 1)

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at) / 1e6

        cuda = pytest.importorskip("torch").cuda
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "Stream", lambda priority: object())

    def pause(self, call: str) -> None:
        self.pauses.remove(call)
        time.sleep(3 * CudaSpanRecorder.TIE_NS / 1e9)

    def work(self, events: int) -> None:
        for event in self.queued[:events]:
            event.at = time.monotonic_ns()
        del self.queued[:events]


def test_steps_that_a_gpu_works_on_are_left_for_later_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = Gpu(monkeypatch)
    recorder = CudaSpanRecorder()
    meter = StepMeter(recorder, 0, Layout.of(RunSpec()))
    with closing(FileSink(tmp_path, 0)) as sink:
        for whole in (False, True):
            run_steps(recorder, 3, 4)  # six events each
            gpu.work(13)
            meter.emit(sink, Clock(), whole=whole)
            assert bool(gpu.waited) == whole
            assert (meter.spent() > 0) == whole, "no step is held up while there is work"
            made = gpu.made
        meter.emit(sink, Clock(), whole=False)
        run_steps(recorder, 3, 4)
    assert gpu.made == made, "events are used again"
    found = [*waits(read_file(events_path(tmp_path, 0)))]
    assert [one.sums["step"].tolist() for one in found] == [[0, 1], [2, 3, 0, 1, 2, 3]]
    assert all((one.sums["total"] > 0).all() for one in found)


def test_a_gpu_that_does_not_answer_at_once_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(CudaSpanRecorder, "HELD", 5)
    recorder = CudaSpanRecorder()
    gpu.answers = False
    run_steps(recorder, 3, 7)
    gpu.work(1 << 10)
    assert recorder.take_kept() is None
    gpu.answers = True
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [2, 3, 4, 5, 6] and not gpu.waited
    assert recorder.end_step()[0]["end"] <= time.monotonic_ns() and gpu.waited == 1, "a traced step is waited for"


def test_the_last_steps_are_read_also_where_a_gpu_does_not_answer_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.answers = False
    meter = StepMeter(recorder := CudaSpanRecorder(), 0, Layout.of(RunSpec()))
    with closing(FileSink(tmp_path, 0)) as sink:
        run_steps(recorder, 3, 4)
        events = list(gpu.queued)
        gpu.work(13)
        for whole in (False, True):
            meter.emit(sink, Clock(), whole=whole)
        assert [event.at is not None for event in events] == [True] * 24
        made = gpu.made
        run_steps(recorder, 3, 4)
    assert gpu.made == made, "events are used again"
    found = [*waits(read_file(events_path(tmp_path, 0)))]
    assert [one.sums["step"].tolist() for one in found] == [[0, 1, 2, 3]]


def test_the_time_to_read_the_last_steps_is_left_out_also_if_the_last_one_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = Gpu(monkeypatch)
    meter = StepMeter(recorder := CudaSpanRecorder(), 0, Layout.of(RunSpec()))
    run_steps(recorder, CudaSpanRecorder.KEPT + 1, 3)
    with closing(FileSink(tmp_path, 0)) as sink:
        meter.emit(sink, Clock(), whole=True)
    assert meter.spent() > 0 and gpu.waited
    assert [one.sums["step"].tolist() for one in waits(read_file(events_path(tmp_path, 0)))] == [[1]]


def test_only_the_time_to_read_steps_in_which_a_gpu_has_no_work_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = Gpu(monkeypatch)
    meter = StepMeter(recorder := CudaSpanRecorder(), 0, Layout.of(RunSpec()))

    class SlowSink(FileSink):
        def emit(self, kind: str, blob: bytes = b"", **fields: Any) -> None:
            super().emit(kind, blob, **fields)
            time.sleep(0.003)
            gpu.work(1 << 10)  # the last step ends while those before it are written
            time.sleep(0.002)

    run_steps(recorder, 3, 2)
    gpu.work(6)
    error = CudaSpanRecorder.TIE_NS / 2e9
    with closing(SlowSink(tmp_path, 0)) as sink:
        begun = time.monotonic()
        meter.emit(sink, Clock(), whole=False)
        took = time.monotonic() - begun
    assert 0.002 - error <= meter.spent() <= took - 0.003 + error


def test_since_when_a_gpu_has_no_work_is_unknown_without_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    recorder = CudaSpanRecorder()
    run_steps(recorder, 3, 2)
    gpu.work(6)
    assert recorder.take_kept() is not None and recorder.idle_since() is None and not recorder.idle
    last = gpu.queued[-1]
    gpu.work(1 << 10)
    since = recorder.idle_since()
    assert since is not None and abs(since - last.at) <= CudaSpanRecorder.TIE_NS / 2
    gpu.answers = False
    assert recorder.take_kept() is None and recorder.idle and recorder.idle_since() is None
    assert recorder.take_kept(whole=True) is not None and recorder.idle_since() is not None
    run_steps(recorder, 3, 1)
    gpu.work(1 << 10)
    assert recorder.idle and recorder.idle_since() is None, "the event of the tie is in use again"


def test_a_gpu_that_does_not_answer_is_not_asked_for_more_and_more_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.answers = False
    recorder = CudaSpanRecorder()
    run_steps(recorder, 3, 100)
    gpu.work(1 << 10)
    assert recorder.take_kept() is None and gpu.asked == 6, "those of the oldest step"


def test_where_too_many_steps_are_kept_the_oldest_that_are_not_traced_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(CudaSpanRecorder, "HELD", 3)
    recorder = CudaSpanRecorder()

    def kept(traced: str) -> list[int]:
        """The steps kept of those that are traced (T) and not (-)."""
        for step, one in enumerate(traced):
            recorder.begin_step(step)
            recorder.keep_step(one == "T")
        gpu.work(1 << 10)
        found = recorder.take_kept()
        assert found is not None and found.rows["start"].tolist() == sorted(found.rows["start"])
        return found.steps

    assert kept("-----") == [2, 3, 4]
    assert gpu.made == 2 * 4 + 1, "the events of dropped steps are used again"
    assert kept("-T----") == [1, 4, 5]
    assert kept("TTT-") == [0, 1, 2]
    assert kept("TTT-T") == [1, 2, 4]


@pytest.mark.parametrize("call", ["record", "query"])
def test_clocks_are_tied_again_where_the_host_did_not_run_meanwhile(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    gpu = Gpu(monkeypatch)
    recorder = CudaSpanRecorder()
    run_steps(recorder, 3, 2)
    first = gpu.queued[0]
    gpu.work(1 << 10)
    gpu.pauses = [call]
    kept = recorder.take_kept()
    assert kept is not None and not gpu.pauses
    assert abs(int(kept.rows["start"][0]) - first.at) <= CudaSpanRecorder.TIE_NS / 2


@pytest.mark.gpu
def test_cuda_events_of_kept_steps_are_not_used_again_before_they_are_read() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = CudaSpanRecorder()
    for _ in range(2):
        before = time.monotonic_ns()
        run_steps(recorder, 3, 4)
        recorder.wait()
        kept = recorder.take_kept(whole=True)
        assert kept is not None and kept.steps == [0, 1, 2, 3]
        steps = kept.rows[kept.rows["kind"] == Kind.STEP]
        assert (steps["end"][:-1] <= steps["start"][1:] + 1_000).all()
        assert steps["start"][0] >= before - 50_000


@pytest.mark.gpu
def test_reading_the_steps_kept_does_not_wait_for_queued_work() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = CudaSpanRecorder()
    run_steps(recorder, 3, 2)
    torch.cuda.synchronize()
    recorder.begin_step(2)
    torch.cuda._sleep(4_000_000_000)
    recorder.keep_step()
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [0, 1] and not recorder.idle
    assert recorder.idle_since() is None
    tied = time.monotonic_ns()
    recorder.wait()
    since = recorder.idle_since()
    assert since is not None and tied < since <= time.monotonic_ns() + 50_000, "it ended after the event of the tie"
    kept = recorder.take_kept(whole=True)
    assert kept is not None and kept.steps == [2] and recorder.idle


@pytest.mark.gpu
def test_cuda_spans_lie_within_the_host_s_clock() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = CudaSpanRecorder()
    a = torch.randn(2048, 2048, device="cuda")
    for step in range(3):
        before = time.monotonic_ns()
        recorder.begin_step(step)
        start = recorder.mark()
        a = torch.tanh(a @ a)
        recorder.add(Kind.F, LANE_COMPUTE, 0, 0, start, recorder.mark())
        rows = recorder.end_step()
        assert before - 50_000 <= rows[1]["start"] < rows[1]["end"] <= rows[0]["end"] <= time.monotonic_ns() + 50_000
