"""What a worker measures between attempts: one thing at a time, its own calibration first, and every result is
reported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.calibration import Calibration
from workers.idle_measurements import IdleMeasurements

SPEC = {"model": {"kind": "mlp", "layers": 2, "hidden": 16}, "train": {"global_batch": 2}}


def test_the_host_itself_is_measured_before_what_was_asked_for(tmp_path: Path) -> None:
    told: list[tuple[str, Mapping[str, Any]]] = []
    between = IdleMeasurements(Calibration(tmp_path, "no-such-device"), lambda kind, body: told.append((kind, body)))
    between.ask(1, {"model": {"heads": 3}})
    assert [(kind, body["profile"]) for kind, body in told] == [("profile", 1)] and "heads" in told[0][1]["error"]
    between.ask(2, SPEC)
    between.begin()
    assert between.calibration.running, "the calibration comes first"
    between.begin()
    deadline = time.monotonic() + 60
    while not between.ended():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not between.running and len(told) == 1, "a failed calibration is not reported"
    between.begin()
    assert between.running and not between.calibration.running
    between.stop()


def test_nothing_runs_where_nothing_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text('{"device": "cpu", "step_time": 0.1}')
    between = IdleMeasurements(Calibration(tmp_path, "cpu"), lambda kind, body: None)
    between.begin()
    assert not between.running and not between.ended()
