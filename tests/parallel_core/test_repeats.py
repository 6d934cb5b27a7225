"""The summary of repeated timings: hiccups count in proportion to their frequency, breakdowns do not."""

from __future__ import annotations

import pytest

from parallel_core.profile.repeats import expected


def test_sums_of_parts_are_what_the_whole_takes() -> None:
    """One part of 10 ms in ten has a hiccup of 5 ms: ten parts take 105 ms, not ten times the median."""
    parts = [0.010] * 9 + [0.015]
    assert 10 * expected(parts) == pytest.approx(sum(parts))


def test_a_breakdown_is_left_out() -> None:
    assert expected([1.0, 1.0, 1.2, 30.0]) == pytest.approx(3.2 / 3)
    assert expected([0.0, 0.0]) == 0.0
