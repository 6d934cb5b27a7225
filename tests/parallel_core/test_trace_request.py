"""A step requested while the run is under way is traced by its ranks, and profiled if requested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.observe.records import SPAN
from parallel_core.observe.trace_request import HOWS, NAME, How, TraceRequest, TraceRequests, ask
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import read_file

MODEL = {"layers": 1, "hidden": 16, "heads": 2, "seq": 16, "vocab": 256}


def test_a_request_is_for_one_step_and_the_newest_counts(tmp_path: Path) -> None:
    asked = TraceRequests(tmp_path)
    assert asked.at(3) is None, "nothing was requested"
    ask(tmp_path, TraceRequest(3))
    assert asked.at(2) is None and asked.at(3) == TraceRequest(3, "spans")
    ask(tmp_path, TraceRequest(7, "profiler"))
    assert TraceRequests(tmp_path).at(7) == TraceRequest(7, "profiler") and TraceRequests(tmp_path).at(3) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"step": "x", "how": "spans"}', '{"step": 3}', '{"step": 3, "how": "films"}']
)
def test_a_file_that_makes_no_sense_asks_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert TraceRequests(tmp_path).at(3) is None


@pytest.mark.parametrize("how", HOWS)
def test_the_asked_step_is_traced_and_no_other(tmp_path: Path, how: How) -> None:
    train = {"steps": 12, "warmup_steps": 2, "global_batch": 2}
    spec = RunSpec.model_validate({"model": MODEL, "train": train, "trace": {"trace_every": 0}})
    ask(tmp_path, TraceRequest(4, how))
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    frames = read_file(events_path(tmp_path, 0))
    spans = {
        frame.header["step"]: np.frombuffer(frame.blob, SPAN) for frame in frames if frame.header["kind"] == "spans"
    }
    assert sorted(spans) == [*([4] if how == "spans" else []), 7], (
        "the requested step, and the one that is always traced"
    )
    assert {int(Kind.F), int(Kind.BW), int(Kind.STEP)} <= set(spans[min(spans)]["kind"].tolist())
    profiles = {frame.header["step"] for frame in frames if frame.header["kind"] == "profile"}
    assert profiles == ({4} if how == "profiler" else set())
    assert not any(frame.header["kind"] == "snapshot" for frame in frames), "a CPU core has no allocator to record"
