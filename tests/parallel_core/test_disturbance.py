"""Which runs count as quiet."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.analysis.disturbance import DISTURBED_ABOVE, is_quiet


@pytest.mark.parametrize(
    ("summary", "quiet"),
    [
        ({"cpu_others": DISTURBED_ABOVE}, True),
        ({"cpu_others": 1.01 * DISTURBED_ABOVE}, False),
        ({"cpu_others": None, "others_missing": True}, False),
        ({"cpu_others": None, "others_missing": False}, True),
        ({"cpu_others": None, "other_processes": 1}, False),
        ({"cpu_others": None, "other_processes": 0}, True),
        ({"cpu_others": None, "other_processes": None}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_run_is_quiet_unless_others_were_busy_or_may_have_been(summary: dict[str, Any] | None, quiet: bool) -> None:
    assert is_quiet(summary) is quiet
