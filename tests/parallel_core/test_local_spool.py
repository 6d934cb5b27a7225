"""The records of a run without a dashboard: in several files, below a limit, and read as one stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parallel_core.cli import entry
from parallel_core.limits import SPOOL_BYTES
from parallel_core.local import LocalRunner, Tail
from parallel_core.observe.record_files import FileSink, Frame, read_stream, segments
from parallel_core.observe.records import OMITTED, SPAN
from parallel_core.observe.spool import Recorded, Spool
from parallel_core.spec import RunSpec
from workers.settings import Settings

SPANS = 40


def record(sink: FileSink, steps: range) -> None:
    for step in steps:
        sink.emit("spans", np.zeros(SPANS, SPAN).tobytes(), step=step, count=SPANS, total=SPANS)
        sink.emit("phase", phase="timed", step=step)


def test_a_stream_in_several_files_is_read_as_one_also_behind_what_went(tmp_path: Path) -> None:
    sink, tail = FileSink(tmp_path, 0, segment=8 << 10), Tail(tmp_path, 0)
    seen: list[Frame] = []
    tail.read(None)
    for first in (0, 30):
        record(sink, range(first, first + 30))
        tail.read(seen.append)
    assert len(segments(tmp_path, 0)) > 5 and seen == list(read_stream(tmp_path, 0))
    Spool(1).bound([Recorded(tmp_path, {0: 0}, over=True)], last=True)
    record(sink, range(60, 62))
    tail.read(seen.append)
    left = list(read_stream(tmp_path, 0))
    for frames in (seen, left):
        assert [frame.header["step"] for frame in frames if frame.kind == "phase"] == list(range(62))
    gone = [row for frame in left if frame.kind == "omitted" for row in np.frombuffer(frame.blob, OMITTED).tolist()]
    assert gone == [(step, SPANS) for step in range(60)]
    assert [frame.header["step"] for frame in left if frame.kind == "spans"] == [60, 61]


def test_the_spans_of_a_run_go_where_they_are_over_the_limit(runner: LocalRunner, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 8},
            "train": {"steps": 6, "warmup_steps": 1, "global_batch": 4},
            "trace": {"trace_every": 1},
        }
    )
    shown: list[Frame] = []
    done = runner.run(spec, tmp_path, on_frame=shown.append, spool_bytes=1)
    assert done.ok, done.failure()
    gone = [np.frombuffer(frame.blob, OMITTED)["step"] for frame in done.frames[0].of("omitted")]
    assert np.concatenate(gone).tolist() == [1, 2, 3, 4, 5] and done.traced() == {}
    assert done.series("loss")["step"].tolist() == list(range(6))
    assert {"hello", "summary", "points"} <= {frame.kind for frame in shown}


def test_train_has_the_limit_of_a_worker() -> None:
    read = entry._parser().parse_args
    assert read(["train", "spec.json"]).spool_bytes == SPOOL_BYTES == Settings.from_env({}).spool_bytes
    assert read(["train", "spec.json", "--spool-bytes", "5000"]).spool_bytes == 5000
