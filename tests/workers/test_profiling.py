"""Profiles on request: each request number once, an invalid spec is answered at once, a valid one with its cost
table.
"""

from __future__ import annotations

import time

from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec
from workers.measurement import Ended
from workers.profiling import Profiling, cause

SPEC = {"model": {"kind": "mlp", "layers": 2, "hidden": 16}, "train": {"global_batch": 2}}


def test_a_request_is_answered_once_with_a_table() -> None:
    profiling = Profiling(["--quick", "--ranks", "1", "--seconds", "0.05"])
    assert profiling.ask(7, SPEC) is None and profiling.ask(7, SPEC) is None
    profiling.begin()
    assert profiling.running and not profiling.waiting
    deadline = time.monotonic() + 120
    while (answer := profiling.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer["profile"] == 7
    assert CostTable.model_validate(answer["table"]).model == RunSpec.model_validate(SPEC).model
    assert profiling.ask(7, SPEC) is None and not profiling.waiting


def test_a_spec_that_is_none_is_refused() -> None:
    answer = Profiling().ask(1, {"model": {"heads": 3}})
    assert answer is not None and "heads" in answer["error"]


def test_a_failure_is_said() -> None:
    profiling = Profiling(["--ranks", "nonsense"])
    profiling.ask(2, SPEC)
    profiling.begin()
    deadline = time.monotonic() + 60
    while (answer := profiling.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "nonsense" in answer["error"] and "usage:" in answer["log"]


def test_the_cause_comes_first_whatever_is_written_behind_it() -> None:
    """torch's messages have many lines, and a dying process may be followed by unrelated warnings (here
    resource_tracker's): still the first line with the cause is reported.
    """
    told = "warming up\nprofiling failed: Rank 1 failed at step 0 in links: RuntimeError: no route\n  frame #0: c10\n"
    trace = "Traceback (most recent call last):\n  File 'a', line 1\nValueError: a table\nresource_tracker: leaked 2\n"
    assert cause(Ended(1, told + trace)) == "Rank 1 failed at step 0 in links: RuntimeError: no route"
    assert cause(Ended(1, trace)) == "ValueError: a table"
    assert cause(Ended(2, "usage: profile\nprofile: --ranks must be a whole number\n\n")).endswith("a whole number")
    assert cause(Ended(-9, "warming up\n")) == "it ended with signal 9 (SIGKILL)"
    assert cause(Ended(3, "")) == "it ended with exit code 3"
    assert cause(Ended(None, "warming up\n")) == "it took more than 600 s"
