"""Records without their spans: what stands in the place of spans, and what stays as it is."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from parallel_core.observe import record_files
from parallel_core.observe import spool as spool_module
from parallel_core.observe.record_files import FileSink, decode, events_path
from parallel_core.observe.records import OMITTED, POINT, SPAN
from parallel_core.observe.spool import without_spans
from tests.workers.spooled import record


def stripped(data: bytes) -> tuple[bytes, int]:
    target = io.BytesIO()
    steps = without_spans(io.BytesIO(data), target, 0)
    return target.getvalue(), steps


@pytest.mark.parametrize("spoilt", [{"step": None}, {"step": 1 << 40}, {"total": 2.5}, {"total": -1}])
def test_spans_that_no_row_can_stand_for_stay(spoilt: dict[str, object]) -> None:
    header = {"kind": "spans", "rank": 0, "t": 0.0, "step": 1, "count": 1, "total": 1}
    whole, bad = (record_files.encode({**header, **more}, bytes(50)) for more in ({}, spoilt))
    shorter, steps = stripped(whole + bad + whole)
    assert steps == 2
    assert [frame.kind for frame in decode(shorter)] == ["omitted", "spans", "omitted"]


def test_a_record_of_omitted_steps_is_not_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MOST_ROWS", 4)
    sink = FileSink(tmp_path, 0)
    for step in range(10):
        sink.emit("spans", np.zeros(1, SPAN).tobytes(), step=step, count=1, total=1)
    sink.emit("spans", np.zeros(1, SPAN).tobytes(), step=10, contestant="of a benchmark with turns")
    data = events_path(tmp_path, 0).read_bytes()
    shorter, steps = stripped(data)
    assert steps == 10
    assert [len(f.blob) // OMITTED.itemsize for f in decode(shorter) if f.kind == "omitted"] == [4, 4, 2]
    assert [f.end for f in decode(shorter)][-1] == len(data)
    assert stripped(shorter) == (shorter, 0)


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
    shorter, dropped = stripped(data)
    assert dropped == 6 and kinds.count("waits") == 5
    found = list(decode(shorter))
    assert [f.kind for f in found] == ["omitted", "points", "omitted"]
    assert [np.frombuffer(f.blob, OMITTED).tolist() for f in found[::2]] == [[(2, 1)], []]
    assert [f.end for f in found] == [f.end for f in decode(data)][4:]


def test_bytes_that_are_no_records_stay(tmp_path: Path) -> None:
    record(tmp_path, steps=5)
    data = events_path(tmp_path, 0).read_bytes() + b"no record at all" * 10
    shorter, steps = stripped(data)
    assert steps == 5 and shorter.endswith(b"no record at all" * 10)
