"""The metric series that ranks emit are those that `observe.records` lists; those of the run come from rank 0 alone."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parallel_core
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.evaluation import Evaluated
from parallel_core.engine.fingerprint import Print
from parallel_core.engine.norm import Totals
from parallel_core.engine.reference_probe import ProbeReading
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.stream import Staleness
from parallel_core.observe.record_files import FileSink, read_stream
from parallel_core.observe.records import POINT, RANK_SERIES, RUN_SERIES
from parallel_core.plan.chips import Peak
from parallel_core.spec import RunSpec


@pytest.mark.parametrize(("rank", "listed"), [(0, {*RUN_SERIES, *RANK_SERIES}), (1, {*RANK_SERIES})])
def test_all_series_that_a_rank_emits_are_listed(rank: int, listed: set[str], tmp_path: Path) -> None:
    """In fp16 without a flush, where a rank has all of them."""
    split = {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 2}
    spec = RunSpec.model_validate({"parallel": split, "train": {"precision": "fp16", "clip": "stage"}})
    report = Reporter(spec, rank, FileSink(tmp_path, rank), CpuDevice())
    report.peak(Peak(1e11, "measured"), 2e11, 2)
    report.others = lambda: 0.25
    report.reference(0, ProbeReading(0.1, None, 0.1))
    report.evaluated(Evaluated(0, 5.5, 0.2))
    report.step(0, [Totals(5.0, 1.0, step=0)], 0.1, Staleness(0.5, 1), 1e-3, last=True)
    points = [frame.header["series"] for frame in read_stream(tmp_path, rank) if frame.kind == "points"]
    unlike = sorted({name for each in points for name, _ in each} ^ listed)
    assert not unlike, f"list in observe/records.py what a rank adds, and nothing else: {', '.join(unlike)}"


def test_points_go_on_when_the_clock_of_the_host_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, passed, back = (time.time(), time.monotonic()), [0.0], [0.0]
    monkeypatch.setattr(time, "time", lambda: begun[0] + passed[0] - back[0])
    monkeypatch.setattr(time, "clock_gettime", lambda _: begun[1] + passed[0])
    report = Reporter(RunSpec(), 1, FileSink(tmp_path, 1), CpuDevice())
    for step, back[0] in enumerate((0.0, 3600.0, 3600.0)):
        passed[0] += 1.0
        report.step(step, [], 0.1, None, 1e-3, last=False)
    blobs = [frame.blob for frame in read_stream(tmp_path, 1) if frame.kind == "points"]
    times = [float(np.frombuffer(blob, POINT)["time"][0]) - begun[0] for blob in blobs]
    assert times == pytest.approx([1.0, 2.0, 3.0], abs=1e-3)


def _held() -> int:
    """Bytes that lines of the engine and of this file have allocated: what tests before this one left may grow
    meanwhile.
    """
    gc.collect()
    lines = [tracemalloc.Filter(True, name) for name in (str(Path(parallel_core.__file__).parent / "*"), __file__)]
    own = tracemalloc.take_snapshot().filter_traces(lines)
    return sum(each.size for each in own.statistics("filename"))


def _left(report: Reporter, add: Callable[[int], object]) -> int:
    """Bytes that 2000 calls of `add` leave in memory, behind 1000 others."""
    tracemalloc.start()
    try:
        for step in range(3000):
            if step == 1000:
                report.flush(whole=True)
                before = _held()
            add(step)
        report.flush(whole=True)
        after = _held()
    finally:
        tracemalloc.stop()
    return after - before


def _summary(folder: Path) -> dict[str, Any]:
    return next(frame.header for frame in read_stream(folder, 1) if frame.kind == "summary")


def test_a_step_leaves_only_its_seconds_in_memory(tmp_path: Path) -> None:
    """A run may have millions of steps."""
    split = {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 2}
    spec = RunSpec.model_validate({"parallel": split, "train": {"clip": "stage"}})
    report, times = Reporter(spec, 1, FileSink(tmp_path, 1), CpuDevice()), StepTimes(0)

    def add(step: int) -> None:
        report.step(step, [], times.ended(), Staleness(step / 7, step), 1e-3, last=False)

    assert _left(report, add) < 2000 * 16
    report.summary(times, None, None, 3000)
    assert _summary(tmp_path)["staleness"] == {"mean": pytest.approx(2999 / 14), "max": 2999}


def test_a_check_and_a_reference_work_leave_only_their_seconds_in_memory(tmp_path: Path) -> None:
    """The summary is of all of them."""
    report, times = Reporter(RunSpec(), 1, FileSink(tmp_path, 1), CpuDevice()), StepTimes(0)
    times.ended()

    def add(step: int) -> None:
        report.fingerprint(Print(step, 1, 2, seconds=float(step)))
        report.reference(step, ProbeReading(together=1 + step / 3000, alone=2.0, lasted=2.0))

    assert _left(report, add) < 2000 * 3 * 16
    report.summary(times, None, None, 3000)
    found, mean = _summary(tmp_path), 1 + 2999 / 6000
    assert (found["fingerprint"]["checks"], found["fingerprint"]["seconds"]) == (3000, 1499.5)
    company = {"company": pytest.approx(mean / 2), "alone": 3000}
    assert found["reference"] == {"seconds": pytest.approx(mean), "times": 3000, **company}
