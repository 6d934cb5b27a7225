"""An injected slow group: by how much a collective takes longer."""

from __future__ import annotations

import pytest

from parallel_core.engine import injected
from parallel_core.engine.injected import late


class _Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Sum:
    """A collective that takes `seconds`, among them those until its last rank comes."""

    def __init__(self, clock: _Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def wait(self) -> None:
        self._clock.sleep(self._seconds)


@pytest.mark.parametrize(("before", "took", "whole"), [(0, 30, 50), (15, 30, 50), (40, 30, 70)])
def test_it_takes_longer_by_what_the_rank_does_not_compute_meanwhile(
    before: float, took: float, whole: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr(injected, "time", clock)
    work = late(_Sum(clock, took), 20)
    clock.sleep(before)
    work.wait()
    assert clock.now == whole


def test_work_that_is_not_late_is_itself() -> None:
    work = object()
    assert late(work, 0.0) is work
