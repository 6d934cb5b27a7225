"""The worker or the broker dies during a run: no data is lost, no process is left, and the reported end is true."""

from __future__ import annotations

import os
import signal
import time

import pytest

from parallel_core.observe import record_files
from tests.parallel_core.frames import read_file
from tests.workers.harness import ENDLESS, Bench, none_alive, paced, tiny
from workers.folder import Folder

pytestmark = pytest.mark.faults


def all_arrived(bench: Bench, attempt: int) -> bool:
    """Checks that every complete frame in both ranks' files has arrived; returns True."""
    folder = bench.folder / "attempts" / str(attempt)
    for rank in (0, 1):
        frames = read_file(record_files.events_path(folder, rank))
        got = bench.received(attempt, "events", rank)
        assert len(frames) > 3
        assert len(got) == frames[-1].end
        assert got == record_files.events_path(folder, rank).read_bytes()[: frames[-1].end]
    return True


def test_a_killed_worker_tells_the_rest_when_it_is_back(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    bench.stop_worker(signal.SIGKILL)
    bench.wait("death of the ranks", lambda: none_alive(recorded))
    assert not bench.states(attempt, "ended")
    bench.start_worker()
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["none_left"]) == ("failed", "worker_lost", True)
    assert end["detail"] == "The worker was restarted while this ran."
    assert all_arrived(bench, attempt)
    bench.send(ENDLESS, attempt)  # a message that is delivered late, to the restarted worker
    assert bench.wait_end(bench.send(tiny()))["outcome"] == "succeeded"
    assert len(bench.states(attempt, "starting")) == 1


def test_what_ended_while_nobody_looked_is_told_as_it_was(bench: Bench) -> None:
    attempt = bench.send(paced(100))
    recorded = bench.wait_running(attempt)
    assert bench.worker
    bench.worker.send_signal(signal.SIGSTOP)
    bench.wait("end of the ranks", lambda: none_alive(recorded))
    assert not bench.states(attempt, "ended")
    bench.stop_worker(signal.SIGKILL)
    bench.start_worker()
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["exits"]) == ("succeeded", {"0": 0, "1": 0}), end
    assert all_arrived(bench, attempt)


def test_a_restart_repeats_an_end_that_was_not_settled(bench: Bench) -> None:
    attempt = bench.send(tiny())
    first = bench.wait_end(attempt)
    bench.stop_worker(signal.SIGKILL)
    bench.start_worker()
    bench.wait("second end", lambda: len(bench.states(attempt, "ended")) == 2)
    assert bench.states(attempt, "ended")[1] == first


def _goes_on(bench: Bench, attempt: int) -> None:
    """It is heard again, can be cancelled, has lost nothing, and another one can run."""
    before = len(bench.heard)
    bench.wait("batches after the outage", lambda: any(entry.kind == "batch" for entry in bench.heard[before:]))
    bench.control("cancel", attempt)
    end = bench.wait_end(attempt)
    assert end["outcome"] == "cancelled", end
    assert all_arrived(bench, attempt)
    assert bench.wait_end(bench.send(tiny()))["outcome"] == "succeeded"


def test_an_outage_of_the_broker_loses_nothing(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    bench.wait_running(attempt)
    said = len(bench.log())
    bench.restart_broker(2.0)
    _goes_on(bench, attempt)
    log = bench.log()[said:]
    for words in ("Redis (REDIS_URL) does not answer", "Redis answers again"):
        assert log.count(words) == 1, f"reported once for heartbeat, relay and control reader together:\n{log}"
    assert not any(words in log for words in ("no heartbeat", "control stream:", "the broker does not take events"))
    assert "Cannot connect to" not in log, "nor does Celery report each attempt to connect"


def test_a_broker_that_takes_nothing_for_a_while_ends_no_run(bench: Bench) -> None:
    """As one whose disk is full: it refuses every write, which to wait for a message of a queue is, too."""
    attempt = bench.send(ENDLESS)
    bench.wait_running(attempt)
    said = len(bench.log())
    bench.redis.config_set("min-replicas-to-write", 1)
    try:
        time.sleep(4)  # the outage itself
    finally:
        bench.redis.config_set("min-replicas-to-write", 0)
    _goes_on(bench, attempt)
    log = bench.log()[said:]
    for words in ("Redis (REDIS_URL) takes nothing: NOREPLICAS", "Redis takes what is sent again"):
        assert log.count(words) == 1, log
    others = ("no heartbeat", "control stream:", "the broker does not take events", "Traceback", "Frequent restarts")
    assert not any(words in log for words in others), log
    assert log.count("Connect") < 12, f"once a second at most:\n{log}"


def test_an_orderly_stop_interrupts_and_leaves_nothing(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    assert bench.stop_worker() == 0
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["none_left"]) == ("interrupted", "interrupted", True)
    assert none_alive(recorded)
    assert all_arrived(bench, attempt)
    says_so = next(i for i, entry in enumerate(bench.heard) if entry.body.get("leaving"))
    ended = next(
        i for i, e in enumerate(bench.heard) if (e.body.get("attempt"), e.body.get("state")) == (attempt, "ended")
    )
    assert says_so < ended, "otherwise the run would be queued again and come back to this worker"
    bench.start_worker()


@pytest.mark.full
def test_a_stop_without_a_broker_is_told_at_the_next_start(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    bench.broker.send_signal(signal.SIGSTOP)
    bench.stop_worker()
    assert none_alive(recorded)
    bench.broker.send_signal(signal.SIGCONT)
    bench.start_worker()
    assert bench.wait_end(attempt)["outcome"] == "interrupted"
    assert all_arrived(bench, attempt)


def test_what_a_failed_test_leaves_under_way_holds_no_later_one(bench: Bench) -> None:
    recorded = bench.wait_running(bench.send(ENDLESS))
    bench.send(tiny())  # waits for the devices
    assert bench.worker
    bench.worker.send_signal(signal.SIGSTOP)
    bench.restore()
    assert none_alive(recorded)
    assert bench.wait_end(bench.send(tiny()))["outcome"] == "succeeded"


def test_a_second_worker_of_the_same_name_does_not_start(bench: Bench) -> None:
    first = bench.worker
    assert first
    bench.wait("first worker", lambda: any(entry.kind == "heartbeat" for entry in bench.heard))
    bench.start_worker()
    second, bench.worker = bench.worker, first
    assert second and second.wait(60) != 0
    assert "already runs" in bench.log()
    os.kill(first.pid, 0)


def test_a_claim_without_a_message_still_gets_an_end(bench: Bench) -> None:
    bench.stop_worker(signal.SIGKILL)
    attempt, bench.next_attempt = bench.next_attempt, bench.next_attempt + 1
    assert Folder.claim(bench.folder / "attempts", attempt)
    bench.start_worker()
    assert bench.wait_end(attempt)["cause"] == "worker_lost"
