"""The clocks of several hosts are tied to each other by messages that take time."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch.distributed as dist

from parallel_core.engine import clocks
from parallel_core.engine.clocks import (
    _TIME,
    KEY,
    Clock,
    ClockOffset,
    ReferenceClock,
    RemoteClock,
    ahead,
    tie_of,
)
from parallel_core.observe.records import SPAN
from tests.parallel_core.test_hosts import SECOND


def test_a_tie_is_off_by_at_most_half_of_its_round_trip() -> None:
    assert tie_of(1_000, 50_600, 1_201) == ClockOffset(1_100, 49_500, 101)


def test_between_two_ties_a_clock_runs_evenly() -> None:
    boot = 40 * 24 * 3600 * SECOND  # so far from 0 that a float64 would round
    before, last = ClockOffset(boot, 7 * SECOND, 50), ClockOffset(boot + 10 * SECOND, 7 * SECOND + 1_000, 50)
    at = np.array([boot, boot + 5 * SECOND, boot + 10 * SECOND], np.int64)
    assert ahead(at, [before, last]).tolist() == [7 * SECOND, 7 * SECOND + 500, 7 * SECOND + 1_000]
    assert ahead(at, [last]).tolist() == [7 * SECOND + 1_000] * 3


def test_what_two_close_ties_differ_by_is_no_drift() -> None:
    """Of a step of 5 ms, by which they are 0.1 ms apart: times of the last 250 ms would be 5 ms off."""
    before, last = ClockOffset(5_000_000, 0, 60_000), ClockOffset(10_000_000, 100_000, 60_000)
    at = np.array([-SECOND // 4, 0, 5_000_000, 7_500_000, 10_000_000, SECOND // 4], np.int64)
    assert ahead(at, [before, last]).tolist() == [0, 0, 0, 50_000, 100_000, 100_000]
    earlier = ClockOffset(10_000_000 - SECOND, -900_000, 60_000)  # 1 ms in a second
    assert ahead(at, [earlier, before, last]).tolist()[2:] == [0, 50_000, 100_000, 340_000]
    assert ahead(np.array([-2 * SECOND]), [earlier, before, last]).tolist() == [-900_000 - 1_010_000]


def test_a_clock_keeps_the_ties_that_tell_its_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    ties = iter(ClockOffset(at * SECOND // 10, at * 1_000, 50 + at) for at in (0, 20, 21, 24, 34))
    store = dist.HashStore()
    ReferenceClock("127.0.0.1", store)
    monkeypatch.setattr(RemoteClock, "_ask", lambda self: next(ties))
    clock, rows = RemoteClock(store), np.zeros(1, SPAN)
    rows["start"] = 5 * SECOND
    for kept, within, start in (
        ([0, 20], 70, 50),
        ([0, 20, 21], 71, 50),
        ([0, 20, 21, 24], 74, 50),
        ([24, 34], 84, 50),
    ):
        clock.tie()
        assert [tie.at // (SECOND // 10) for tie in clock._ties] == kept
        assert clock.told() == {"clock_within": within}
        assert clock.moved(rows, "start")["start"][0] == 5 * SECOND + start * 1_000


def test_a_rank_of_another_host_asks_rank_0_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    ReferenceClock("127.0.0.1", store)
    clock = RemoteClock(store)
    assert clock.within is not None
    now = time.monotonic_ns()
    rows = np.zeros(2, SPAN)
    rows["start"], rows["end"] = now, now + 5
    clock.tie()
    moved = clock.moved(rows, "start", "end")
    assert np.abs(moved["start"] - now).max() <= clock.within  # both use the same clock here
    assert rows["start"][0] == now, "the rank's own rows are unchanged"


def test_a_clock_whose_keeper_has_gone_keeps_what_it_knows() -> None:
    store = dist.HashStore()
    ReferenceClock("127.0.0.1", store)
    clock = RemoteClock(store)
    before = clock.within
    clock._reference.close()
    clock.tie()
    assert clock.within == before


@pytest.mark.parametrize("answers", [True, False])
def test_a_clock_is_old_until_it_is_asked_again(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rank 0 answers no more, so that it is not asked after every step."""
    store = dist.HashStore()
    ReferenceClock("127.0.0.1", store)
    clock = RemoteClock(store)
    assert not clock.old and not Clock().old
    clock._asked -= clocks.OLD_NS
    assert clock.old
    if not answers:
        clock._reference.close()
    clock.tie()
    assert not clock.old


def test_an_answer_that_came_too_late_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 stood still for longer than the other rank waits for its answer, then answers all requests at once."""
    monkeypatch.setattr(clocks, "ROUNDS", 1)
    store, answers = dist.HashStore(), threading.Event()
    answers.set()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store.set(KEY, f"127.0.0.1 {listener.getsockname()[1]}")

        def keep() -> None:
            with listener.accept()[0] as asker:
                while asker.recv(1):
                    told = time.monotonic_ns()
                    answers.wait()
                    with suppress(OSError):
                        asker.sendall(_TIME.pack(told))

        keeper = threading.Thread(target=keep, daemon=True)
        keeper.start()
        clock = RemoteClock(store)
        answers.clear()
        clock._reference.settimeout(0.3)
        clock.tie()
        answers.set()
        clock.tie()
        rows = np.zeros(1, SPAN)
        rows["start"] = now = time.monotonic_ns()
        assert clock.within is not None
        assert abs(int(clock.moved(rows, "start")["start"][0]) - now) <= clock.within
        clock._reference.close()
        keeper.join(10)
