"""What the reference work next to runs says about the host's speed, and what it attributes to contention between
devices.
"""

from __future__ import annotations

import pytest

from parallel_core.analysis.host_drift import (
    POWER,
    UNEVEN,
    Pace,
    at_pace,
    contention_by_ranks,
    contention_warning,
    drift_warning,
    drifts,
    spread,
)

ALONE = Pace(1, 0.002)


def test_of_as_many_ranks_the_seconds_alone_tell_the_pace() -> None:
    """Equal numbers of ranks had equal contention, whatever it was."""
    base = Pace(2, 0.002, company=1.5)
    assert drifts(base, [base, Pace(2, 0.003), Pace(2, 0.001, company=1.1)]) == [1.0, pytest.approx(1.5), 0.5]


def test_of_other_numbers_of_ranks_company_is_taken_out() -> None:
    """Three devices that take 1.5 times as long next to each other; the host is as fast as before, or half as fast."""
    three = [Pace(3, 0.003, 1.5), Pace(3, 0.006, 1.5), Pace(3, 0.003, 1.5)]
    assert drifts(ALONE, three) == pytest.approx([1.0, 2.0, 1.0])
    assert drifts(three[0], [ALONE, *three])[0] == pytest.approx(1.0)


def test_without_company_measured_nothing_is_said_of_other_numbers_of_ranks() -> None:
    assert drifts(ALONE, [ALONE, Pace(2, 0.004), Pace(1, 0.001)]) == [1.0, None, 0.5]


def test_each_run_measured_its_company_a_few_times_only() -> None:
    """The median over all runs counts, also for runs that did not measure contention."""
    found = [Pace(2, 0.004, 1.9), Pace(2, 0.004, 1.2), Pace(2, 0.004), Pace(2, 0.004, 1.0), Pace(4, 0.004, 2.0)]
    assert contention_by_ranks([ALONE, *found]) == {1: 1.0, 2: 1.2}, (
        "a single run with four ranks may have had bad luck"
    )
    assert drifts(ALONE, found) == [*[pytest.approx(0.004 / 1.2 / 0.002)] * 4, None]


def test_the_spread_is_over_whatever_can_be_held_against_each_other() -> None:
    assert spread([]) is None and spread([ALONE]) is None and spread([ALONE, Pace(2, 0.009)]) is None
    assert spread([ALONE, Pace(2, 0.009), Pace(2, 0.006)]) == pytest.approx(0.5)
    known = [ALONE, Pace(2, 0.009, 1.5), Pace(2, 0.006, 1.5), Pace(2, 0.009, 1.5)]
    assert spread(known) == pytest.approx(2.0), "0.006 s and 0.002 s without contention"


def test_a_step_changes_less_than_the_work() -> None:
    assert at_pace(1.2, 1.0) == 1.2
    assert at_pace(1.2, 1.78) == pytest.approx(1.2 * 1.78**POWER)
    assert 1.2 < at_pace(1.2, 1.78) < 1.2 * 1.78
    assert at_pace(1.2, 0.5) < 1.2


def test_the_sentences() -> None:
    assert drift_warning(None) == drift_warning(UNEVEN) == ""
    assert drift_warning(0.2).endswith(": smaller gains between them are uncertain.")
    assert drift_warning(0.78, ("DP", 1.94, "Single")) == (
        "The host's own pace differed by up to 78 % between runs: at Single's pace DP would be fastest, about 1.94x."
    )
    assert drift_warning(0.2, hosts=True).startswith("The devices' pace differed by up to 20 % between runs")
    assert drift_warning(0.78, ("Single", 1.0, "Single")).endswith("at one pace Single would be fastest.")
    assert contention_warning({}) == contention_warning({2: 1.1}) == ""
    said = contention_warning({2: 1.6, 4: 3.2})
    assert said.startswith("With all 4 devices at work each took 3.20x as long as alone: splits over them")
    assert said.endswith(" get to about 1.25x at most.")
