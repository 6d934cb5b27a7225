"""A yard that ends without stopping its parts leaves none that goes on; no log grows without end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from dashboard.yard import broker
from dashboard.yard.processes import bound, stop_in_order
from parallel_core import processes
from tests.dashboard.test_yard import DEADLINE_S, part, wait_for

STAYS = "import time; print('up', flush=True); time.sleep(600)"
FOLLOWS = f"from parallel_core.processes import die_with_told_parent; die_with_told_parent(); {STAYS}"


@pytest.mark.parametrize(
    ("linux", "command", "up"),
    [
        (True, ["-c", STAYS], "up"),
        (False, ["-c", FOLLOWS], "up"),
        (False, ["-m", "workers"], "cannot be reached"),
    ],
)
def test_kill_of_the_parent_takes_the_part_along(
    linux: bool, command: list[str], up: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on Linux, the part itself has to look whether its parent is still there."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    code = f"""
import os, sys, time
from pathlib import Path
from dashboard.yard import processes
processes.LINUX = {linux}
part = processes.Part("part", [sys.executable, *{command}], Path({str(tmp_path)!r}) / "inner.log")
part.start(dict(os.environ), Path.cwd())
print(part.process.pid, flush=True)
time.sleep(600)
"""
    parent = part(tmp_path, code)
    parent.start(dict(os.environ), Path.cwd())
    assert parent.process is not None
    log = tmp_path / "part.log"
    wait_for(lambda: log.read_text().endswith("\n"))
    inner = int(log.read_text())
    wait_for(lambda: up in (tmp_path / "inner.log").read_text())
    parent.process.kill()
    parent.process.wait()
    try:
        wait_for(lambda: not processes.alive(inner))
    finally:
        processes.kill(inner, 0)


IDLE = """
import sys
from pathlib import Path
from dashboard.yard.home import Home
from dashboard.yard.up import Yard

class Idle(Yard):
    def _start(self):
        self.parts = []

    def _greet(self, seconds):
        print("up", flush=True)

    def _finish(self):
        print("finished", flush=True)

sys.exit(Idle(Home(Path(sys.argv[1]))).run())
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_stops_the_yard_in_order_unless_under_nohup(ignored: bool, tmp_path: Path) -> None:
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    command = [sys.executable, "-c", IDLE, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, handler)
    ) as yard:
        assert yard.stdout is not None
        assert yard.stdout.readline() == "up\n"
        yard.send_signal(signal.SIGHUP)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                yard.wait(0.5)
            yard.terminate()
        assert yard.stdout.read() == "finished\n"
    assert yard.returncode == 0


def test_a_broker_that_an_earlier_yard_left_is_ended_before_another_begins(tmp_path: Path) -> None:
    left, url = broker.start(tmp_path)
    with redis.Redis.from_url(url) as client:
        client.set("kept", 1)
    broker.end_left(url)
    assert left.wait(DEADLINE_S) == 0
    broker.end_left(url)  # none is there
    again, _ = broker.start(tmp_path)
    try:
        with redis.Redis.from_url(url) as client:
            assert client.get("kept") == b"1"
        again.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="does not end"):
            broker.end_left(url, limit=0.3)
    finally:
        again.kill()
        again.wait()


def test_a_log_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.yard.processes.LOG_BYTES", 1000)
    code = "import time; print('x' * 2000, flush=True); open('go').read(); print('after', flush=True); time.sleep(600)"
    subject = part(tmp_path, code)
    os.mkfifo(tmp_path / "go")
    subject.start(dict(os.environ), tmp_path)
    wait_for(lambda: subject.log.stat().st_size > 2000)
    subject.watch(dict(os.environ), tmp_path)
    (tmp_path / "go").write_text("on")
    wait_for(lambda: subject.log.read_text() == "after\n")
    assert (tmp_path / "part.log.1").read_text() == "x" * 999 + "\n"
    subject.log.write_text("y" * 1500)
    stop_in_order([[subject]])
    again = part(tmp_path, "print('begun')")
    again.start(dict(os.environ), tmp_path)
    assert again.process is not None and again.process.wait(DEADLINE_S) == 0
    assert (subject.log.read_text(), (tmp_path / "part.log.1").read_text()) == ("begun\n", "y" * 1000)


def test_a_log_is_emptied_where_the_disk_has_no_space_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of a file fails a write half-way, as a full disk does."""
    monkeypatch.setattr("dashboard.yard.processes.LOG_BYTES", 1000)
    log, kept = tmp_path / "part.log", tmp_path / "part.log.1"
    log.write_text("x" * 2000)
    kept.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        bound(log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.stat().st_size == 0 and not kept.exists()
