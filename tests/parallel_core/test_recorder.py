"""Spans of one step, their order, their cap, and the progress page."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from parallel_core.observe import host, progress
from parallel_core.observe.cores import core_of
from parallel_core.observe.recorder import LANE_COMPUTE, LANE_P2P, SpanRecorder
from parallel_core.observe.records import SPAN
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind


def test_a_step_gives_its_spans_behind_its_step_row() -> None:
    recorder = SpanRecorder(stage=2, replica=1)
    recorder.begin_step(5)
    start = recorder.mark()
    recorder.add(Kind.F, LANE_COMPUTE, 2, 3, start, recorder.mark(), replica=1)
    recorder.add(Kind.SEND_ACT, LANE_P2P, 2, 3, start, recorder.mark(), bytes=512, replica=1, version=4)
    rows = recorder.end_step()
    assert rows.dtype == SPAN and list(rows["kind"]) == [Kind.STEP, Kind.F, Kind.SEND_ACT]
    assert rows[0]["start"] <= rows[1]["start"] <= rows[1]["end"] <= rows[0]["end"]
    assert (rows[0]["stage"], rows[0]["replica"], rows[0]["micro_batch"]) == (2, 1, -1)
    assert (rows[2]["bytes"], rows[2]["replica"], rows[2]["version"]) == (512, 1, 4)


def test_the_next_step_starts_empty() -> None:
    recorder = SpanRecorder()
    for step in range(2):
        recorder.begin_step(step)
        recorder.add(Kind.F, LANE_COMPUTE, 0, step, recorder.mark(), recorder.mark())
    assert list(recorder.end_step()["micro_batch"]) == [-1, 1]


def test_beyond_capacity_spans_are_counted_not_kept() -> None:
    recorder = SpanRecorder(capacity=4)
    recorder.begin_step(0)
    for i in range(10):
        recorder.add(Kind.F, LANE_COMPUTE, 0, i, i, i + 1)
    assert list(recorder.end_step()["micro_batch"]) == [-1, 0, 1, 2]
    assert recorder.total == 11


def run_steps(recorder: SpanRecorder, spans: int, upto: int, traced: bool = False) -> None:
    """Runs and keeps steps with this number of spans, the STEP included."""
    for step in range(upto):
        recorder.begin_step(step)
        for i in range(spans - 1):
            recorder.add(Kind.F, LANE_COMPUTE, 0, i, recorder.mark(), recorder.mark())
        recorder.keep_step(traced)


def test_kept_steps_are_read_together() -> None:
    recorder = SpanRecorder()
    assert recorder.take_kept() is None
    run_steps(recorder, 3, 4)
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [0, 1, 2, 3] and kept.times == sorted(kept.times)
    assert kept.rows["kind"].tolist() == [Kind.STEP, Kind.F, Kind.F] * 4
    steps = kept.rows[kept.rows["kind"] == Kind.STEP]
    assert (steps["end"][:-1] <= steps["start"][1:]).all()
    assert recorder.take_kept() is None


def test_the_kept_step_ends_once() -> None:
    """What is done between keeping a step and reading its spans is no part of it."""
    recorder = SpanRecorder()
    recorder.begin_step(0)
    recorder.keep_step()
    after = time.monotonic_ns()
    assert recorder.end_step()[0]["end"] <= after
    kept = recorder.take_kept()
    assert kept is not None and kept.rows.tolist() == recorder.end_step().tolist()


@pytest.mark.parametrize(("spans", "every"), [(1024, 1), (1025, 2), (2048, 2), (2049, 4), (5000, 8)])
def test_steps_with_more_spans_are_kept_less_often(spans: int, every: int) -> None:
    """In powers of two, so that ranks with different numbers of spans have common steps."""
    recorder = SpanRecorder()
    run_steps(recorder, spans, 9)
    kept = recorder.take_kept()
    assert (kept.steps if kept else []) == list(range(every - 1, 9, every))


def test_a_traced_step_is_kept_whatever_its_number_of_spans() -> None:
    recorder = SpanRecorder()
    run_steps(recorder, 5000, 2, traced=True)
    kept = recorder.take_kept()
    assert kept is not None and kept.steps == [0, 1]


def test_steps_cut_by_the_capacity_are_not_kept() -> None:
    recorder = SpanRecorder(capacity=4)
    run_steps(recorder, 5, 2)
    assert recorder.take_kept() is None
    run_steps(recorder, 4, 2)
    assert recorder.take_kept() is not None


def test_progress_is_read_from_another_view_of_the_file(tmp_path: Path) -> None:
    page = progress.Progress(tmp_path, 3)
    page.at(12, "1F3")
    where = progress.read(tmp_path, 3)
    assert where is not None and (where.step, where.op) == (12, "1F3") and where.age >= 0
    page.at(13, "x" * 100)
    where = progress.read(tmp_path, 3)
    assert where is not None and where.op == "x" * 40


def test_a_rank_that_gets_on_with_its_operation_has_just_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, now = progress.Progress(tmp_path, 0), time.monotonic_ns()
    page.at(12, "BW3")
    ages = []
    for seconds in (90, 0):
        monkeypatch.setattr(time, "monotonic_ns", lambda: now + 90_000_000_000)
        if not seconds:
            page.moved()
        where = progress.read(tmp_path, 0)
        assert where is not None and (where.step, where.op) == (12, "BW3")
        ages.append(where.age)
    assert ages[0] > 89 and ages[1] == 0


def test_a_rank_without_a_page_is_nowhere(tmp_path: Path) -> None:
    assert progress.read(tmp_path, 0) is None
    progress.path(tmp_path, 0).write_bytes(b"torn")
    assert progress.read(tmp_path, 0) is None


def test_time_of_our_own_process_is_not_that_of_others() -> None:
    import os

    core = core_of(0)
    kept = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with_us = host.CpuOthers(core, lambda: [os.getpid()])
        without_us = host.CpuOthers(core, list)
        np.sort(np.random.default_rng(0).standard_normal(6_000_000))
        assert 0 <= with_us.share() < without_us.share() <= 1
    finally:
        os.sched_setaffinity(0, kept)


def test_resident_memory_is_seen_to_grow() -> None:
    before = host.rss()
    block = np.ones(8 << 20)
    assert host.rss() - before > block.nbytes // 2
    assert host.peak_rss() >= before + block.nbytes // 2


def test_a_muted_scope_records_nothing_and_then_goes_on() -> None:
    recorder = SpanRecorder()
    scope = Scope(recorder)
    recorder.begin_step(3)
    with scope.muted():
        scope.span(Kind.F, LANE_COMPUTE, scope.mark())
    assert recorder.end_step()["kind"].tolist() == [Kind.STEP]
    recorder.begin_step(4)
    scope.span(Kind.F, LANE_COMPUTE, scope.mark())
    assert recorder.end_step()["kind"].tolist() == [Kind.STEP, Kind.F] and scope.mark is recorder.mark
