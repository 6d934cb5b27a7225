"""However ranks, their fork server or its client die, no process is left."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from parallel_core import processes
from parallel_core.engine.meeting import meet
from parallel_core.launch import (
    EXIT_FULL,
    EXIT_QUOTA,
    Event,
    ForkServer,
    ServerLost,
    describe_exit,
    environment,
)
from parallel_core.launch.server import FAIL_GRACE_S
from parallel_core.observe import progress
from tests.parallel_core.launch_ranks import DIE_AFTER_FORK, FORK_ONCE, FORKED
from tests.parallel_core.launch_yard import COMMAND, LIMIT_S, Yard, eventually, order, where_waiting
from tests.parallel_core.test_launch import GONE_S

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="reads /proc")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A server for one test, which may kill it."""
    one = Yard(tmp_path)
    yield one
    one.server.close()


@pytest.mark.full
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


def test_who_waits_on_another_host_is_told_of_a_rank_that_is_killed_before_it_joins(yard: Yard) -> None:
    """Else they waited for it until the controller, if it was at work, had heard of its end and ended them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # of rank 0, on another host
    there = {"host": "127.0.0.1", "port": store.port}
    folder = yard.start(1, "", "not_join", first_rank=1, devices=[0], store=there)
    pid = yard.until("started", attempt=1)["pid"]
    eventually(lambda: progress.read(folder, 1) is not None)
    os.kill(pid, signal.SIGKILL)
    yard.until("gone", attempt=1)
    eventually(lambda: store.check(["lost"]))
    assert store.get("lost") == b"rank 1 failed before it joined: signal 9 (SIGKILL)"
    with pytest.raises(ConnectionAbortedError, match=r"rank 1 failed before it joined: signal 9 \(SIGKILL\)"):
        meet(store, 0, 2, LIMIT_S)


def test_a_signal_is_told_with_what_it_means() -> None:
    assert describe_exit(-signal.SIGKILL) == "signal 9 (SIGKILL)"
    assert "memory that ranks share" in describe_exit(-signal.SIGBUS)
    assert "a file that was cut while it was read" in describe_exit(-signal.SIGBUS)


@pytest.mark.parametrize(
    ("role", "code", "said"),
    [("fill_disk", EXIT_FULL, "No space left on device"), ("fill_quota", EXIT_QUOTA, "Disk quota exceeded")],
)
def test_a_rank_that_cannot_write_that_its_disk_is_full_says_so_by_its_exit_code(
    yard: Yard, role: str, code: int, said: str
) -> None:
    yard.start(1, role)
    yard.until("gone", attempt=1)
    assert yard.exits(1) == [(0, code)]
    assert said in describe_exit(code)


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


def test_a_rank_that_nobody_was_told_of_dies_with_the_fork_server(tmp_path: Path) -> None:
    """The server is killed between the fork and its report, so no worker could end this process."""
    yard = Yard(tmp_path, DIE_AFTER_FORK, str(tmp_path))
    try:
        yard.start(1, "ignore_term")
        yard.until("lost")
        assert not yard.ranks(1)
        pid = int((tmp_path / FORKED).read_text())
        eventually(lambda: not processes.alive(pid))
    finally:
        yard.server.close()


def test_a_term_ends_the_server_in_order(yard: Yard) -> None:
    folder = yard.start(1, "wait", "wait")
    eventually(lambda: where_waiting(folder, 2))
    os.kill(yard.server.pid, signal.SIGTERM)
    yard.until("gone", attempt=1)
    yard.until("lost")


@pytest.mark.full
def test_a_term_to_the_server_gives_ranks_the_time_that_its_client_gives_them(yard: Yard) -> None:
    """systemd and batch systems signal every process: what ranks need to save is longer than what a fault allows."""
    folder = yard.start(1, "ignore_term", "ignore_term")
    eventually(lambda: where_waiting(folder, 2))
    yard.until("started", rank=1)
    os.kill(yard.server.pid, signal.SIGTERM)
    time.sleep(1.5 * FAIL_GRACE_S)
    assert len(processes.wait_gone(yard.ranks(1).values(), 0)) == 2, "they save still"
    yard.server.stop(1, 0)
    yard.until("gone", attempt=1)
    yard.until("lost")


@pytest.mark.full
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


@pytest.mark.full
def test_closing_the_client_leaves_nothing(yard: Yard) -> None:
    folder = yard.start(1, "wait", "ignore_term")
    eventually(lambda: where_waiting(folder, 2))
    yard.server.close()
    yard.until("lost")
    assert processes.wait_gone([*yard.ranks(1).values(), (yard.server.pid, 0)], 0) == []


@pytest.mark.full
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
