"""What is said of repeats: hiccups count by how often they come, breakdowns do not."""

from __future__ import annotations

import pytest

from parallel_core.profile.repeats import expected


def test_sums_of_parts_are_what_the_whole_takes() -> None:
    """Every tenth part of 10 ms has a hiccup of 5 ms: ten of them take 105 ms, not ten medians."""
    parts = [0.010] * 9 + [0.015]
    assert 10 * expected(parts) == pytest.approx(sum(parts))


def test_a_breakdown_is_left_out() -> None:
    assert expected([1.0, 1.0, 1.2, 30.0]) == pytest.approx(3.2 / 3)
    assert expected([0.0, 0.0]) == 0.0
