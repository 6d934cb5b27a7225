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
from parallel_core.local import waits
from parallel_core.observe.recorder import LANE_COMPUTE, CudaSpanRecorder, recorder_for
from parallel_core.observe.records import FileSink, events_path, read_file
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core.test_recorder import run_steps


class Gpu:
    """Events of the current stream happen when the test says so, those of another stream at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued: list[Any] = []
        self.waited, self.made, self.answers = 0, 0, True
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: int | None = None
                gpu.made += 1

            def record(self, stream: object = None) -> None:
                self.at = time.monotonic_ns() if stream and gpu.answers else None
                if not stream:
                    gpu.queued = [event for event in gpu.queued if event is not self] + [self]

            def query(self) -> bool:
                return self.at is not None

            def synchronize(self) -> None:
                if self.at is None:
                    gpu.waited += 1
                    gpu.work(len(gpu.queued))

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at) / 1e6

        cuda = pytest.importorskip("torch").cuda
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "Stream", lambda priority: object())

    def work(self, events: int) -> None:
        for event in self.queued[:events]:
            event.at = time.monotonic_ns()
        del self.queued[:events]


def test_steps_that_a_gpu_works_on_are_left_for_later_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu = Gpu(monkeypatch)
    recorder = recorder_for("cuda")
    meter = StepMeter(recorder, 0, Layout.of(RunSpec()))
    with closing(FileSink(tmp_path, 0)) as sink:
        for whole in (False, True):
            run_steps(recorder, 3, 4)  # six events each
            gpu.work(13)
            meter.emit(sink, Clock(), whole=whole)
            assert gpu.waited == whole
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
    recorder = recorder_for("cuda")
    gpu.answers = False
    run_steps(recorder, 3, 7)
    gpu.work(1 << 10)
    assert recorder.take_kept() is None
    gpu.answers = True
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [0, 1, 2, 3, 4] and not gpu.waited
    assert recorder.end_step()[0]["end"] <= time.monotonic_ns() and gpu.waited == 1, "a traced step is waited for"


@pytest.mark.gpu
def test_cuda_events_of_kept_steps_are_not_used_again_before_they_are_read() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = recorder_for("cuda")
    for _ in range(2):
        before = time.monotonic_ns()
        run_steps(recorder, 3, 4)
        recorder.wait()
        kept = recorder.take_kept()
        assert kept is not None and kept.steps == [0, 1, 2, 3]
        steps = kept.rows[kept.rows["kind"] == Kind.STEP]
        assert (steps["end"][:-1] <= steps["start"][1:] + 1_000).all()
        assert steps["start"][0] >= before - 50_000


@pytest.mark.gpu
def test_reading_the_steps_kept_does_not_wait_for_queued_work() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = recorder_for("cuda")
    run_steps(recorder, 3, 2)
    torch.cuda.synchronize()
    recorder.begin_step(2)
    torch.cuda._sleep(4_000_000_000)
    recorder.keep_step()
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [0, 1] and not recorder.idle
    recorder.wait()
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [2] and recorder.idle


@pytest.mark.gpu
def test_cuda_spans_lie_within_the_host_s_clock() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    recorder = recorder_for("cuda")
    a = torch.randn(2048, 2048, device="cuda")
    for step in range(3):
        before = time.monotonic_ns()
        recorder.begin_step(step)
        start = recorder.mark()
        a = torch.tanh(a @ a)
        recorder.add(Kind.F, LANE_COMPUTE, 0, 0, start, recorder.mark())
        rows = recorder.end_step()
        assert before - 50_000 <= rows[1]["start"] < rows[1]["end"] <= rows[0]["end"] <= time.monotonic_ns() + 50_000
