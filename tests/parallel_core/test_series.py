"""The metric series that ranks emit are those that `observe.records` lists; those of the run come from rank 0 alone."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

import parallel_core
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.evaluation import Evaluated
from parallel_core.engine.norm import Totals
from parallel_core.engine.reference_probe import ProbeReading
from parallel_core.engine.reporter import Reporter, StepTimes
from parallel_core.engine.stream import Staleness
from parallel_core.observe.records import RANK_SERIES, RUN_SERIES, FileSink, read_stream
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
    assert {name for each in points for name, _ in each} == listed


def _held() -> int:
    """Bytes that the engine's own lines have allocated: what tests before this one left may grow meanwhile."""
    gc.collect()
    lines = tracemalloc.Filter(True, str(Path(parallel_core.__file__).parent / "*"))
    own = tracemalloc.take_snapshot().filter_traces([lines])
    return sum(each.size for each in own.statistics("filename"))


def test_a_step_leaves_only_its_seconds_in_memory(tmp_path: Path) -> None:
    """A run may have millions of steps."""
    split = {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 2}
    spec = RunSpec.model_validate({"parallel": split, "train": {"clip": "stage"}})
    report, times = Reporter(spec, 1, FileSink(tmp_path, 1), CpuDevice()), StepTimes(0)
    tracemalloc.start()
    try:
        for step in range(3000):
            if step == 1000:
                report.flush(whole=True)
                before = _held()
            report.step(step, [], times.ended(), Staleness(step / 7, step), 1e-3, last=False)
        report.flush(whole=True)
        after = _held()
    finally:
        tracemalloc.stop()
    assert after - before < 2000 * 16
    report.summary(times, None, None, 3000)
    summary = next(frame.header for frame in read_stream(tmp_path, 1) if frame.kind == "summary")
    assert summary["staleness"] == {"mean": pytest.approx(2999 / 14), "max": 2999}
