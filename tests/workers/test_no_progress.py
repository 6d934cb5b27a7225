"""A real worker with a short no-progress limit: what counts as a standstill, and what is reported about
it.
"""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from parallel_core.observe import progress
from parallel_core.schedule.text import under_way
from tests.workers.harness import ENDLESS, NAME, Bench, none_alive, tiny

WORKER = {"TRAINYARD_NO_PROGRESS_S": "20"}


def test_ranks_that_stand_still_are_ended_with_their_places(bench: Bench) -> None:
    """One rank of a pipeline is stopped, so the other waits for it forever: a hang in which no process would end by
    itself.
    """
    attempt = bench.send(tiny(steps=1_000_000, dp=1, pp=2, micro_batches=4))
    recorded = bench.wait_running(attempt)
    os.kill(recorded[1][0], signal.SIGSTOP)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"]) == ("failed", "no_progress")
    assert "rank 0 at step" in end["detail"] and "rank 1 at step" in end["detail"]
    assert none_alive(recorded)
    first, head, *lines = end["traceback"].splitlines()
    assert first.startswith("Stacks of all ranks") and head.startswith("1f1b: operations ")
    for rank, line in enumerate(lines):
        marked = re.findall(r">(\w+)<", line)
        step = re.match(rf"rank {rank}, step (\d+) \| \d+: ", line)
        assert step and len(marked) == 1
        assert re.search(rf"rank {rank} at step {step[1]} in {re.escape(under_way(marked[0]))}\b", end["detail"])
    stacks = (bench.folder / "attempts" / str(attempt) / "log-0.txt").read_text()
    assert "most recent call first" in stacks and "executor.py" in stacks


def test_a_host_that_waits_for_another_is_ended_by_the_controller(bench: Bench) -> None:
    """Rank 1, on another host, never comes: this host alone cannot know that it does not move there either."""
    here = {"worker": NAME, "devices": [0], "first_rank": 0, "address": "127.0.0.1"}
    there = {"worker": "other", "devices": [0], "first_rank": 1, "address": "127.0.0.1"}
    attempt = bench.send(ENDLESS, nodes=[here, there])

    def said() -> bool:
        beats = [entry.body for entry in bench.heard if entry.kind == "heartbeat"]
        return bool(beats) and attempt in beats[-1]["still"]

    bench.wait("heartbeat that says so", said)
    assert not bench.states(attempt, "ended") and not none_alive(bench.recorded(attempt))
    bench.control("stuck", attempt)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"]) == ("failed", "no_progress")
    assert end["detail"] == "No rank moved for 20 s: rank 0 before its first step in connecting."


@pytest.mark.full
def test_a_host_that_was_paused_as_a_whole_is_no_standstill(bench: Bench) -> None:
    """Its watcher wakes up first and sees ranks that have not moved for longer than the limit; it must not end them."""
    attempt = bench.send(ENDLESS)
    ranks = [pid for pid, _ in bench.wait_running(attempt).values()]
    assert bench.worker is not None
    for pid in (bench.worker.pid, *ranks):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(float(WORKER["TRAINYARD_NO_PROGRESS_S"]) + 0.5)
    os.kill(bench.worker.pid, signal.SIGCONT)
    time.sleep(1.0)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    place = progress.read(bench.folder / "attempts" / str(attempt), 0)
    assert place is not None
    bench.wait_running(attempt, place.step + 3)
    bench.control("cancel", attempt)
    assert bench.wait_end(attempt)["cause"] == "cancelled"
