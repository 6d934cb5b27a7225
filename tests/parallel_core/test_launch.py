"""Real forked processes: how ranks start, end, fail and are stopped, and that no process is ever left."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_core import processes
from parallel_core.launch import (
    EXIT_FAULT,
    EXIT_MEMORY,
    Event,
    ForkServer,
    ServerLost,
    StartCommand,
    describe_exit,
    environment,
)
from parallel_core.observe import progress
from parallel_core.observe.cores import core_of
from parallel_core.observe.records import events_path, last_of, log_path
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import read_file
from tests.parallel_core.launch_ranks import FORK_ONCE

LIMIT_S = 60.0
GONE_S = 15.0
"""The longest wait from the failure of one rank to the end of all: three times what the product promises."""
COMMAND = [sys.executable, "-m", "tests.parallel_core.launch_ranks"]
pytestmark = pytest.mark.skipif(not processes.LINUX, reason="reads /proc")


class Yard:
    """A fork server under test, and all events it reported."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.server = ForkServer(self._queue.put, [*COMMAND, *options])

    def until(self, event: str, within: float = LIMIT_S, **match: Any) -> Event:
        """The next event of that kind that matches; all events before it are kept in `events`, too."""
        deadline = time.monotonic() + within
        while True:
            got = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            self.events.append(got)
            assert event == "lost" or got["event"] != "lost", "the fork server ended"
            if got["event"] == event and match.items() <= dict(got).items():
                return got

    def start(self, attempt: int, *behaviours: str, **more: Any) -> Path:
        """Starts one rank for each behaviour, all on this host."""
        folder = self.folder / str(attempt)
        folder.mkdir()
        (folder / "behaviour.json").write_text(json.dumps(dict(enumerate(behaviours))))
        self.server.start(order(attempt, folder, len(behaviours), **more))
        return folder

    def ranks(self, attempt: int) -> dict[int, tuple[int, int]]:
        """rank -> (pid, start ticks) of the ranks reported as started."""
        mine = [e for e in self.events if e["event"] == "started" and e["attempt"] == attempt]
        return {e["rank"]: (e["pid"], e["start_ticks"]) for e in mine}

    def exits(self, attempt: int) -> list[tuple[int, int]]:
        """(rank, exit code) in the order reported."""
        return [(e["rank"], e["code"]) for e in self.events if e["event"] == "exit" and e["attempt"] == attempt]


def order(attempt: int, folder: Path, ranks: int, **more: Any) -> StartCommand:
    spec = RunSpec.model_validate({"parallel": {"dp": ranks}, "train": {"global_batch": ranks}})
    made: StartCommand = {
        "attempt": attempt,
        "spec": spec.model_dump(mode="json"),
        "folder": str(folder),
        "first_rank": 0,
        "devices": list(range(ranks)),
        "device_kind": "cpu",
        "corpus_cache": str(folder),
    }
    return made | more  # type: ignore[return-value]


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A server shared by the tests that leave it alive."""
    os.environ["TRAINYARD_SECRET_KEY"], os.environ["REDIS_URL"] = "hidden", "hidden"
    yard = Yard(tmp_path_factory.mktemp("yard"))
    del os.environ["TRAINYARD_SECRET_KEY"], os.environ["REDIS_URL"]
    yield yard
    yard.server.close()
    assert not processes.alive(yard.server.pid)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A server for one test, which may kill it."""
    one = Yard(tmp_path)
    yield one
    one.server.close()


def where_waiting(folder: Path, ranks: int) -> bool:
    seen = [progress.read(folder, rank) for rank in range(ranks)]
    return all(where is not None and where.step == 1 for where in seen)


def told(folder: Path, rank: int, kind: str) -> dict[str, Any]:
    found = last_of(folder, rank, kind)
    assert found is not None, kind
    return found


def test_ranks_that_finish_are_reported_gone(shared: Yard) -> None:
    folder = shared.start(1, "finish", "finish")
    shared.until("gone", attempt=1)
    assert sorted(shared.exits(1)) == [(0, 0), (1, 0)]
    assert told(folder, 1, "phase")["phase"] == "done"
    assert told(folder, 1, "exit")["code"] == 0


def test_a_rank_is_in_its_place(shared: Yard) -> None:
    folder = shared.start(2, "describe", "describe")
    shared.until("gone", attempt=2)
    hello = [read_file(events_path(folder, rank))[0].header for rank in (0, 1)]
    assert [h["cores"] for h in hello] == [[core_of(0)], [core_of(1)]]
    assert all(h["session"] and h["threads"] == 1 and h["os_threads"] == 1 and not h["secrets"] for h in hello)
    assert max(hello[1]["descriptors"]) < 8, "descriptors of the server leaked into the rank"
    assert log_path(folder, 0).read_text() == "to the log\n"


def test_ranks_meet_at_the_store_on_a_free_port(shared: Yard) -> None:
    folder = shared.start(3, "meet", "meet", "meet")
    shared.until("gone", attempt=3)
    assert [code for _, code in shared.exits(3)] == [0, 0, 0]
    assert [told(folder, rank, "phase")["step"] for rank in range(3)] == [6, 6, 6]


def test_two_attempts_run_at_once(shared: Yard) -> None:
    folders = [shared.start(attempt, "wait") for attempt in (4, 5)]
    eventually(lambda: all(where_waiting(folder, 1) for folder in folders))
    shared.server.stop(4)
    shared.until("gone", attempt=4)
    assert not shared.exits(5)
    shared.server.stop(5)
    shared.until("gone", attempt=5)


def test_the_first_failing_rank_ends_the_others_and_comes_first(shared: Yard) -> None:
    folder = shared.start(6, "wait", "raise_error", "ignore_term")
    shared.until("exit", attempt=6)
    shared.until("gone", GONE_S, attempt=6)
    assert shared.exits(6)[0] == (1, EXIT_FAULT)
    assert dict(shared.exits(6))[2] == -signal.SIGKILL
    fault = told(folder, 1, "fault")
    assert (fault["cause"], fault["step"], fault["op"]) == ("user_code", 4, "1F3")
    assert told(folder, 1, "exit")["code"] == EXIT_FAULT
    assert "a fault of the rank's own code" in fault["traceback"]
    assert "raise ValueError" in log_path(folder, 1).read_text()


def test_out_of_memory_is_told_from_other_faults(shared: Yard) -> None:
    folder = shared.start(7, "run_out", "ignore_term")
    shared.until("exit", attempt=7)
    shared.until("gone", GONE_S, attempt=7)
    assert shared.exits(7) == [(0, EXIT_MEMORY), (1, -signal.SIGKILL)]
    assert told(folder, 0, "fault")["cause"] == "out_of_memory"


def test_stop_kills_a_rank_that_ignores_term(shared: Yard) -> None:
    folder = shared.start(8, "ignore_term")
    eventually(lambda: where_waiting(folder, 1))
    shared.server.stop(8, grace=0.2)
    shared.until("gone", attempt=8)
    assert shared.exits(8) == [(0, -signal.SIGKILL)]


def test_a_stopped_process_is_stopped_for_good(shared: Yard) -> None:
    folder = shared.start(9, "wait")
    eventually(lambda: where_waiting(folder, 1))
    os.kill(shared.until("started", attempt=9)["pid"], signal.SIGSTOP)
    shared.server.stop(9)
    shared.until("gone", attempt=9)


def test_children_of_a_rank_go_with_it(shared: Yard) -> None:
    folder = shared.start(10, "leave_a_child")
    shared.until("gone", attempt=10)
    assert not processes.alive(int((folder / "child").read_text()))


def test_dump_writes_stacks_to_the_log(shared: Yard) -> None:
    folder = shared.start(11, "wait")
    eventually(lambda: where_waiting(folder, 1))
    shared.server.dump(11)
    shared.server.stop(11)  # immediately: the server finishes the dump first
    shared.until("gone", attempt=11)
    assert "in wait" in log_path(folder, 0).read_text()


def test_an_order_that_cannot_be_carried_out_is_refused(shared: Yard) -> None:
    shared.server.start(order(12, shared.folder / "12", 1, spec={"model": {"layers": -1}}))
    assert "layers" in shared.until("refused", attempt=12)["message"]
    shared.until("gone", attempt=12)


def test_a_fork_that_fails_ends_the_ranks_before_it_and_nothing_else(tmp_path: Path) -> None:
    yard = Yard(tmp_path, FORK_ONCE)
    yard.start(1, "wait", "wait")
    said = yard.until("refused", attempt=1)["message"]
    assert "no process left for rank 1 (Resource temporarily unavailable)" in said
    yard.until("gone", attempt=1)
    assert dict(yard.exits(1))[0] in (-signal.SIGTERM, -signal.SIGKILL)
    yard.start(2, "finish")
    yard.until("gone", attempt=2)
    assert yard.exits(2) == [(0, 0)]
    os.kill(yard.server.pid, signal.SIGTERM)
    yard.until("lost")
    yard.server.close()


def test_a_later_host_must_be_told_where_the_store_is(shared: Yard) -> None:
    shared.server.start(order(13, shared.folder / "13", 1, first_rank=1))
    assert "store" in shared.until("refused", attempt=13)["message"]


def test_stopping_what_is_not_there_reports_it_gone(shared: Yard) -> None:
    shared.server.stop(999)
    shared.until("gone", attempt=999)


def test_a_signal_is_told_with_what_it_means() -> None:
    assert describe_exit(-signal.SIGKILL) == "signal 9 (SIGKILL)"
    assert "memory that ranks share" in describe_exit(-signal.SIGBUS)


def test_a_rank_killed_from_outside_ends_its_group(yard: Yard) -> None:
    folder = yard.start(1, "wait", "wait", "ignore_term")
    eventually(lambda: where_waiting(folder, 3))
    yard.until("started", rank=2)
    os.kill(yard.ranks(1)[1][0], signal.SIGKILL)
    yard.until("gone", GONE_S, attempt=1)
    assert yard.exits(1) == [(1, -signal.SIGKILL), (0, -signal.SIGTERM), (2, -signal.SIGKILL)]


def test_ranks_die_with_the_fork_server(yard: Yard) -> None:
    folder = yard.start(1, "wait", "ignore_term")
    eventually(lambda: where_waiting(folder, 2))
    yard.until("started", rank=1)
    os.kill(yard.server.pid, signal.SIGKILL)
    yard.until("lost")
    assert len(yard.ranks(1)) == 2
    assert processes.wait_gone(yard.ranks(1).values(), LIMIT_S) == []
    with pytest.raises(ServerLost):
        yard.start(2, "wait")


def test_a_term_ends_the_server_in_order(yard: Yard) -> None:
    folder = yard.start(1, "wait", "ignore_term")
    eventually(lambda: where_waiting(folder, 2))
    os.kill(yard.server.pid, signal.SIGTERM)
    yard.until("gone", attempt=1)
    yard.until("lost")


def test_a_listener_that_raises_does_not_end_the_ranks(tmp_path: Path) -> None:
    seen: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def listen(event: Event) -> None:
        seen.put(event)
        raise RuntimeError("a fault of the listener")

    server = ForkServer(listen, COMMAND)
    (tmp_path / "behaviour.json").write_text('{"0": "finish"}')
    server.start(order(1, tmp_path, 1))
    kinds: list[str] = []
    while not kinds or kinds[-1] != "gone":
        kinds.append(seen.get(timeout=LIMIT_S)["event"])
    server.close()
    assert kinds == ["ready", "store", "started", "exit", "gone"]


def test_closing_the_client_leaves_nothing(yard: Yard) -> None:
    folder = yard.start(1, "wait", "ignore_term")
    eventually(lambda: where_waiting(folder, 2))
    yard.server.close()
    yard.until("lost")
    assert processes.wait_gone([*yard.ranks(1).values(), (yard.server.pid, 0)], 0) == []


def test_a_client_that_dies_has_its_ranks_killed_without_a_word(tmp_path: Path) -> None:
    """After SIGTERM the ranks, and with them ranks on other hosts, would save and exit as if the run were only
    interrupted; therefore they get SIGKILL.
    """
    (tmp_path / "behaviour.json").write_text('{"0": "wait", "1": "wait"}')
    command = [*COMMAND, "--parent", str(os.getpid())]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps({"do": "start", **order(1, tmp_path, 2)}) + "\n")
    server.stdin.flush()
    eventually(lambda: where_waiting(tmp_path, 2))
    server.stdin.close()
    told = [json.loads(line) for line in server.stdout]
    assert server.wait(LIMIT_S) == 0
    assert sorted((e["rank"], e["code"]) for e in told if e["event"] == "exit") == [(0, -9), (1, -9)]


PARENT = """
import sys, time
from pathlib import Path
from tests.parallel_core.test_launch import Yard
yard = Yard(Path(sys.argv[1]))
yard.start(1, "wait", "ignore_term")
yard.until("started", rank=1)
print(yard.server.pid, *(pid for pid, _ in yard.ranks(1).values()), flush=True)
time.sleep(600)
"""


def test_everything_dies_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    recorded = [(pid, processes.start_ticks(pid)) for pid in pids]
    eventually(lambda: where_waiting(tmp_path / "1", 2))
    parent.kill()
    parent.wait()
    assert processes.wait_gone(recorded, LIMIT_S) == []


def test_a_reused_pid_is_not_the_recorded_process() -> None:
    mine = processes.start_ticks(os.getpid())
    assert processes.alive(os.getpid(), mine)
    assert not processes.alive(os.getpid(), mine + 1)
    assert not processes.kill(os.getpid(), mine + 1, signal.SIGTERM)
