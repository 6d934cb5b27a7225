"""A real worker process with a real broker, fork server and ranks: runs end as they should, whichever process is
killed.
"""

from __future__ import annotations

import os
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from parallel_core.observe import record_files
from parallel_core.observe.trace_request import TraceRequest, TraceRequests
from parallel_core.plan.peak import predict
from parallel_core.spec import RunSpec
from tests.workers.harness import ENDLESS, NAME, Bench, none_alive, tiny
from workers.folder import Folder


def kinds(data: bytes) -> list[str]:
    return [frame.kind for frame in record_files.decode(data)]


def test_a_run_succeeds_and_all_of_it_arrives(bench: Bench) -> None:
    attempt = bench.send(tiny())
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["exits"]) == ("succeeded", "", {"0": 0, "1": 0})
    assert end["none_left"] and end["ran_s"] > 0
    for rank in (0, 1):
        data = bench.received(attempt, "events", rank)
        assert data == record_files.events_path(bench.folder / "attempts" / str(attempt), rank).read_bytes()
        assert end["sizes"][f"events:{rank}"] == len(data)
        assert {"hello", "points", "summary"} <= set(kinds(data))


def test_the_log_says_which_run_an_attempt_is_of(bench: Bench) -> None:
    """Pages name runs, and every other line of the log the attempt alone."""
    attempt = bench.send(tiny(), run=77)
    bench.wait_end(attempt)
    assert f"attempt {attempt} is attempt 1 of run 77" in bench.log()


def test_worker_and_ranks_log_in_utc_wherever_their_host_is(bench: Bench) -> None:
    attempt = bench.send(tiny())
    bench.wait_end(attempt)
    ranks = (bench.folder / "attempts" / str(attempt) / "log-0.txt").read_text()
    lines = [(bench.log(), rf"(.*),\d+: .* attempt {attempt}: succeeded"), (ranks, r"(.*),\d+Z step 0: ")]
    for text, line in lines:
        found = re.search(line, text)
        assert found, text
        at = datetime.fromisoformat(found[1].lstrip("[")).replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - at) < timedelta(hours=1), found[0]


def test_states_are_told_in_order_and_the_end_comes_last(bench: Bench) -> None:
    attempt = bench.send(tiny())
    bench.wait_end(attempt)
    about = [entry for entry in bench.heard if entry.body.get("attempt") == attempt]
    states = [entry.body["state"] for entry in about if entry.kind == "attempt"]
    assert states == ["starting", "running", "ended"]
    assert about[-1].kind == "attempt"


def test_a_second_delivery_starts_nothing(bench: Bench) -> None:
    attempt = bench.send(tiny())
    bench.wait_end(attempt)
    bench.send(tiny(), attempt)
    bench.wait_end(bench.send(tiny()))  # the queue is in order, so the duplicate was read before this one
    assert len(bench.states(attempt, "starting")) == 1
    assert len(bench.states(attempt, "ended")) == 1


def test_a_settled_attempt_leaves_its_claim_alone(bench: Bench) -> None:
    attempt = bench.send(tiny())
    bench.wait_end(attempt)
    bench.control("settled", attempt)
    folder = Folder(bench.folder / "attempts" / str(attempt))
    bench.wait("settled folder", lambda: [path.name for path in folder.path.iterdir()] == ["settled"])
    bench.send(tiny(), attempt)
    bench.wait_end(bench.send(tiny()))
    assert len(bench.states(attempt, "starting")) == 1


def test_a_bad_message_is_refused_with_its_reason(bench: Bench) -> None:
    spec = tiny()
    spec["model"]["heads"] = 3
    end = bench.wait_end(bench.send(spec))
    assert (end["outcome"], end["cause"]) == ("failed", "refused") and "ran_s" not in end
    assert "heads=3 does not divide hidden=16" in end["detail"]


def test_devices_that_are_not_here_are_refused(bench: Bench) -> None:
    end = bench.wait_end(bench.send(tiny(), devices=(0, 7)))
    assert end["cause"] == "refused"
    assert "no cpu device 7" in end["detail"]


def test_a_corpus_that_cannot_be_had_is_refused(bench: Bench) -> None:
    spec = tiny()
    spec["train"]["corpus"] = "blob:" + "0" * 64
    end = bench.wait_end(bench.send(spec))
    assert end["cause"] == "refused"
    assert "corpus 000000000000" in end["detail"]


def test_a_rewind_sends_the_file_and_the_end_again(bench: Bench) -> None:
    attempt = bench.send(tiny())
    bench.wait_end(attempt)
    whole = bench.received(attempt, "events", 1)
    bench.heard = [entry for entry in bench.heard if entry.body.get("rank") != 1 or entry.kind != "batch"]
    bench.control("rewind", attempt, rank=1, channel="events", offset=0)
    bench.wait("second end", lambda: len(bench.states(attempt, "ended")) == 2)
    assert bench.received(attempt, "events", 1) == whole


def test_a_step_that_is_asked_for_is_told_to_the_ranks_and_cancel_leaves_no_process(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    bench.control("trace", attempt, step=10**6, how="profiler")
    folder = bench.folder / "attempts" / str(attempt)
    assert bench.wait("the request", lambda: TraceRequests(folder).at(10**6)) == TraceRequest(10**6, "profiler")
    bench.control("cancel", attempt)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["none_left"]) == ("cancelled", "cancelled", True)
    assert none_alive(recorded)


def test_a_run_starts_once_the_ranks_before_it_have_left_its_devices(bench: Bench) -> None:
    """The controller gives up an attempt and places the next one in the same moment, while ranks still have to die."""
    first = bench.send(ENDLESS)
    old = bench.wait_running(first)
    for pid, _ in old.values():
        os.kill(pid, signal.SIGSTOP)  # so that they end by SIGKILL alone, after the whole grace
    second = bench.send(tiny())
    bench.wait("the next attempt", lambda: bench.states(second, "starting"))
    bench.control("fence", first)
    bench.wait("its ranks", lambda: bench.states(second, "running"))
    assert none_alive(old)
    assert bench.wait_end(second)["outcome"] == "succeeded"


def test_cancel_before_the_message_forestalls_it(bench: Bench) -> None:
    attempt, bench.next_attempt = bench.next_attempt, bench.next_attempt + 1
    bench.control("cancel", attempt)
    assert bench.wait_end(attempt)["outcome"] == "cancelled"
    bench.send(tiny(), attempt)
    bench.wait_end(bench.send(tiny()))
    assert not bench.states(attempt, "starting")


def test_a_fenced_attempt_dies_and_says_nothing(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    bench.control("fence", attempt)
    bench.wait("empty folder", lambda: Folder(bench.folder / "attempts" / str(attempt)).settled)
    assert none_alive(recorded)
    assert not bench.states(attempt, "ended")


def test_a_killed_rank_is_named_with_its_signal(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    os.kill(recorded[1][0], signal.SIGKILL)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["rank"], end["signal"]) == ("failed", "killed_by_signal", 1, 9)
    assert end["detail"].startswith("Rank 1 was killed by signal 9 (SIGKILL) at step ")
    assert none_alive(recorded)


def test_a_rank_out_of_memory_ends_its_group_with_its_own_traceback(bench: Bench) -> None:
    """Only the second stage exceeds the cap; the first one would wait for it forever."""
    spec = tiny(dp=1, pp=2, micro_batches=4, cuts=[1])
    small, large = (memory.total for memory in predict(RunSpec.model_validate(spec)))
    assert large > 1.5 * small
    attempt = bench.send(spec | {"trace": {"memory_cap": (small + 4 * large) // 5}})
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["rank"]) == ("failed", "out_of_memory", 1)
    assert "MemoryCapExceeded" in end["traceback"] and "stage.py" in end["traceback"]
    assert none_alive(bench.recorded(attempt))


def test_heartbeats_name_host_devices_and_live_attempts(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    bench.wait("heartbeat with both ranks", lambda: set(last_beat(bench).get(str(attempt), ())) == {"0", "1"})
    beat = next(entry for entry in reversed(bench.heard) if entry.kind == "heartbeat")
    assert beat.worker == NAME
    assert [device["index"] for device in beat.body["devices"]] == [0, 1]
    assert beat.body["calibration"]["device"] == "cpu"
    assert beat.body["disk_free"] > 0
    assert beat.body["attempts"][str(attempt)]["1"]["age"] >= 0
    bench.control("cancel", attempt)
    bench.wait_end(attempt)
    bench.wait("heartbeat without it", lambda: str(attempt) not in last_beat(bench))


def last_beat(bench: Bench) -> dict[str, Any]:
    beats = (entry.body["attempts"] for entry in reversed(bench.heard) if entry.kind == "heartbeat")
    return next(beats, {})


def test_the_fork_server_is_replaced_when_it_dies(bench: Bench) -> None:
    attempt = bench.send(ENDLESS)
    recorded = bench.wait_running(attempt)
    os.kill(parent_of(recorded[0][0]), signal.SIGKILL)
    end = bench.wait_end(attempt)
    assert (end["outcome"], end["cause"], end["signal"]) == ("failed", "killed_by_signal", 9)
    assert "fork server" in end["detail"]
    assert none_alive(recorded)
    assert bench.wait_end(bench.send(tiny()))["outcome"] == "succeeded"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
