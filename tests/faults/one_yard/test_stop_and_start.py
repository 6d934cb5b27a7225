"""Ctrl-C or SIGKILL of a yard leaves no process; the next start continues the runs under way, and says so."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from parallel_core import processes
from tests.faults.ranks import SAVED, saving, series, stepping
from tests.yard_process import YardProcess, paced, tiny, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


ELSEWHERE = """
import sys
from dashboard.yard import processes
processes.LINUX = False
from dashboard.yard.__main__ import main
sys.exit(main(["up"]))
"""
"""`./run`, without what only Linux does for it."""


@pytest.mark.full
def test_runs_under_way_are_queued_again(yard: YardProcess) -> None:
    with yard.client() as client:
        run = stepping(yard, client, paced(60, dp=2))
    assert yard.stop(signal.SIGINT) == []
    yard.up()
    with yard.client() as client:
        found = yard.wait_state(client, run, "succeeded", "failed", "lost", "cancelled", limit=150)
        assert found["state"] == "succeeded", found
    texts = yard.query(f"list(Event.objects.filter(run={run}).values_list('text', flat=True))")
    assert any("again" in text for text in texts), texts
    assert any("resumed from step" in text and "of attempt 1" in text for text in texts), texts


@pytest.mark.full
def test_a_terminal_that_closes_leaves_no_process(yard: YardProcess) -> None:
    assert yard.stop(signal.SIGHUP) == []
    assert yard.output().endswith("Stopped.\n")
    yard.up()


@pytest.mark.full
def test_kill_of_a_yard_whose_system_ends_no_orphans(yard: YardProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac: every part but the broker ends by itself, and the next start ends the broker."""
    yard.stop()
    monkeypatch.setattr(yard, "command", (sys.executable, "-c", ELSEWHERE))
    yard.up()
    family, broker = yard.family(), yard.part("valkey")
    assert yard.process is not None
    yard.process.kill()
    yard.process.wait()
    gone, left = psutil.wait_procs([process for process in family if process != broker], timeout=30)
    assert len(gone) >= 5 and not [process for process in left if processes.alive(process.pid)]
    assert broker.is_running()
    yard.up()
    assert not processes.alive(broker.pid)
    assert yard.part("valkey").pid != broker.pid
    with yard.client() as client:
        run = yard.submit(client, tiny(6))
        assert yard.wait_state(client, run, "succeeded", "failed", "lost")["state"] == "succeeded"
    yard.stop()
    monkeypatch.undo()
    yard.up()


def test_kill_of_the_yard_leaves_no_process_and_loses_nothing(yard: YardProcess) -> None:
    with yard.client() as client:
        run = stepping(yard, client, saving(60, dp=2), retries=1)
        wait_for("a checkpoint", lambda: yard.run_of(client, run)["checkpoints"])
    family = yard.family()
    assert len(family) >= 6
    assert yard.process is not None
    os.kill(yard.process.pid, signal.SIGKILL)
    yard.process.wait()
    psutil.wait_procs(family, timeout=30)
    assert [p for p in family if processes.alive(p.pid)] == []
    yard.up()
    with yard.client() as client:
        found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=150)
        assert found["state"] == "succeeded", found
        assert series(client, run) == list(range(60))
    begins = yard.query(f"Attempt.objects.filter(run={run}).last().begins")
    assert begins["step"] >= SAVED, begins
