"""The heartbeat keeps its interval, whatever else triggers extra beats."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from workers import heartbeat
from workers.heartbeat import Heartbeat


class Counting(Heartbeat):
    """Counts its beats instead of publishing them."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, nothing, list, nothing, nothing)
        self.beats = threading.Semaphore(0)

    def _beat(self) -> None:
        self.beats.release()


def test_pokes_do_not_put_off_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 1.0)
    pulse = Counting()
    pulse.start()
    for _ in range(200):  # if each poke delayed the next beat by a second, that beat would be minutes away
        assert pulse.beats.acquire(timeout=20)
        pulse.poke()
    assert pulse.beats.acquire(timeout=20)
    assert pulse.beats.acquire(timeout=20), "the regular beat did not come"
    pulse.leave()
    pulse.join(20)
    assert not pulse.is_alive()
