"""Profiles on request: each request number once, an invalid spec is answered at once, a valid one with its cost
table.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec
from workers import measurement, profiling
from workers.calibration import Calibration
from workers.idle_measurements import IdleMeasurements
from workers.measurement import Ended
from workers.profiling import Profiling, cause

SPEC = {"model": {"kind": "mlp", "layers": 2, "hidden": 16}, "train": {"global_batch": 2}}


def test_a_request_is_answered_once_with_a_table() -> None:
    one = Profiling(["--quick", "--ranks", "1", "--seconds", "0.05"])
    assert one.ask(7, SPEC) is None and one.ask(7, SPEC) is None
    one.begin()
    assert one.running and not one.waiting
    deadline = time.monotonic() + 120
    while (answer := one.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer["profile"] == 7
    assert CostTable.model_validate(answer["table"]).model == RunSpec.model_validate(SPEC).model
    assert one.ask(7, SPEC) is None and not one.waiting


def test_a_spec_that_is_none_is_refused() -> None:
    answer = Profiling().ask(1, {"model": {"heads": 3}})
    assert answer is not None and "heads" in answer["error"]


def test_an_answer_that_was_lost_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every heartbeat asks, until the answer has arrived; most of these come while it is on its way."""
    one = Profiling()
    answer = one.ask(1, {"model": {"heads": 3}})
    assert answer is not None and one.ask(1, SPEC) is None
    monkeypatch.setattr(profiling, "_AGAIN_S", 0.0)
    assert one.ask(1, SPEC) == answer and not one.waiting
    for number in range(2, 2 + profiling._KEPT):
        one.ask(number, {"model": {"heads": 3}})
    assert one.ask(1, SPEC) is None and one.waiting, "what is not kept any more is measured again"


def test_a_profile_that_cannot_be_started_is_answered_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The request would else be asked for ever: it waits no longer, and nothing is under way."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[Any] = []
    idle = IdleMeasurements(Calibration(tmp_path, "cpu"), lambda *event: told.append(event))
    idle.calibration.tried = True
    idle.ask(1, SPEC)
    monkeypatch.setattr(measurement.tempfile, "TemporaryFile", full)
    idle.begin()
    error = "it could not be started: [Errno 28] No space left on device"
    assert told == [("profile", {"profile": 1, "error": error})] and not idle.running
    monkeypatch.setattr(profiling, "_AGAIN_S", 0.0)
    idle.ask(1, SPEC)
    assert told[1:] == told[:1], "the answer may be lost"


def test_a_request_that_is_cancelled_frees_the_devices_at_once() -> None:
    one = Profiling()
    for number in (1, 2, 3):
        one.ask(number, SPEC)
    one.begin()
    assert one.pending == [1, 2, 3]
    one.cancel(2)
    one.cancel(9)
    assert one.running and one.pending == [1, 3]
    one.cancel(1)
    assert not one.running and one.poll() is None and one.pending == [3]
    one.ask(1, SPEC)
    assert one.pending == [3, 1], "asked for again, it is measured again"


def test_what_a_library_writes_at_its_exit_hides_no_table() -> None:
    one = Profiling()
    assert one._answer(Ended(0, 'warming up\n{"version": 3}\nresource_tracker: leaked 2\n'))["table"] == {"version": 3}
    assert "no cost table" in one._answer(Ended(0, "warming up\n[1]\n"))["error"]


def test_a_failure_is_said() -> None:
    one = Profiling(["--ranks", "nonsense"])
    one.ask(2, SPEC)
    one.begin()
    deadline = time.monotonic() + 60
    while (answer := one.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "nonsense" in answer["error"] and "usage:" in answer["log"]


def test_the_cause_comes_first_whatever_is_written_behind_it() -> None:
    """torch's messages have many lines, and a dying process may be followed by unrelated warnings (here
    resource_tracker's): still the first line with the cause is reported.
    """
    failed = "Rank 1 failed while it measured links: RuntimeError: no route"
    told = f"warming up\nprofiling failed: {failed}\n  frame #0: c10\n"
    trace = "Traceback (most recent call last):\n  File 'a', line 1\nValueError: a table\nresource_tracker: leaked 2\n"
    assert cause(Ended(1, told + trace)) == failed
    assert cause(Ended(1, trace)) == "ValueError: a table"
    assert cause(Ended(2, "usage: profile\nprofile: --ranks must be a whole number\n\n")).endswith("a whole number")
    assert cause(Ended(-9, "warming up\n")) == "it ended with signal 9 (SIGKILL)"
    assert cause(Ended(3, "")) == "it ended with exit code 3"
    assert cause(Ended(None, "warming up\n")) == "it took more than 600 s"
