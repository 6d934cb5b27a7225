"""Ctrl-C stops everything and leaves no process; the next start continues the runs that were under way, and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.yard_process import YardProcess, paced, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def yard() -> Iterator[YardProcess]:
    subject = YardProcess(TRAINYARD_STARTER="0", TRAINYARD_CPU_DEVICES="2").calibrated().up()
    yield subject
    subject.close()


def test_runs_under_way_are_queued_again(yard: YardProcess) -> None:
    with yard.client() as client:
        run = yard.submit(client, paced(60, dp=2))
        wait_for("some steps", lambda: (yard.run_of(client, run)["step"] or 0) >= 3)
    assert yard.stop(signal.SIGINT) == []
    yard.up()
    with yard.client() as client:
        found = yard.wait_state(client, run, "succeeded", "failed", "lost", "cancelled", limit=150)
        assert found["state"] == "succeeded", found
    texts = yard.query(f"list(Event.objects.filter(run={run}).values_list('text', flat=True))")
    assert any("again" in text for text in texts), texts
    assert any("resumed from step" in text and "of attempt 1" in text for text in texts), texts


def test_kill_of_the_yard_leaves_no_process(yard: YardProcess) -> None:
    with yard.client() as client:
        run = yard.submit(client, paced(100_000, dp=2))
        wait_for("some steps", lambda: (yard.run_of(client, run)["step"] or 0) >= 3)
    family = yard.family()
    assert len(family) >= 6
    assert yard.process is not None
    os.kill(yard.process.pid, signal.SIGKILL)
    yard.process.wait()
    psutil.wait_procs(family, timeout=30)
    left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert left == []
