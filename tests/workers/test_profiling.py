"""Profiles on request: each number once, a wrong spec is answered at once, a real one with its table."""

from __future__ import annotations

import time

from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec
from workers.profiling import Profiling

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
    assert "nonsense" in answer["error"]
