"""The calibration of a new host: measured once, stored, and not repeated while it is stored."""

from __future__ import annotations

import time
from pathlib import Path

from workers.calibration import Calibration


def test_a_host_is_measured_once(tmp_path: Path) -> None:
    first = Calibration(tmp_path, "cpu")
    assert not first.tried
    first.begin()
    deadline = time.monotonic() + 120
    while not first.poll():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert first.result and first.result["step_time"] > 0
    again = Calibration(tmp_path, "cpu")
    assert again.tried and again.result == first.result
    assert not Calibration(tmp_path, "cuda").tried
