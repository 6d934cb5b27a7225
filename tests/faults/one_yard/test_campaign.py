"""The kill campaign: a seeded sequence of runs, during each of which one process of the yard is killed at a random
moment.
"""

from __future__ import annotations

import os
import random
import signal
import time

import httpx
import pytest

from parallel_core import processes
from tests.faults.ranks import gone, pids_of, series
from tests.yard_process import YardProcess, tiny, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.full, pytest.mark.timeout(600)]
STEPS = 1500
ROUNDS = 40
HARMLESS = {"controller": "manage.py controller", "broker": "unixsocket", "web": "gunicorn"}
"""Processes whose death a run must survive, each with a string that its command line contains."""
FATAL = {"worker": "-m workers", "fork server": "parallel_core.launch"}
LAYOUTS = ({"dp": 2}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"pp": 2, "micro_batches": 4, "recompute": "full"})


def kill(yard: YardProcess, victim: str) -> None:
    """Sends SIGKILL to one process. For a rank: the fork server's youngest child, or nothing if all have just ended."""
    if victim != "rank":
        yard.part((HARMLESS | FATAL)[victim]).kill()
        return
    ranks = yard.part(FATAL["fork server"]).children()
    if ranks:
        os.kill(ranks[-1].pid, signal.SIGKILL)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_one_kill_at_a_random_moment(yard: YardProcess, client: httpx.Client, number: int) -> None:
    """The run ends in a state with a true cause, every point is stored exactly once, and no process is left."""
    dice = random.Random(number)
    victim = dice.choice([*HARMLESS, *FATAL, "rank"])
    retries = dice.choice((0, 0, 1))
    run = yard.submit(client, tiny(STEPS, **dice.choice(LAYOUTS)), retries=retries)
    time.sleep(dice.uniform(0, 4))
    kill(yard, victim)
    found = yard.wait_state(client, run, "succeeded", "failed", "lost", limit=300)
    where = f"round {number}: {victim} killed, {found['state']} {found['cause']} {found['detail']}"
    if victim in HARMLESS or retries:
        assert found["state"] == "succeeded", where
    elif found["state"] != "succeeded":
        assert found["cause"] in {"killed_by_signal", "worker_lost"} and found["detail"], where
    steps = series(client, run)
    assert steps == list(range(len(steps))), where
    assert found["state"] != "succeeded" or len(steps) == STEPS, where
    wait_for("its ranks gone", lambda: gone(pids_of(yard, run)), 30)
    wait_for("all ranks gone", lambda: gone([p.pid for p in yard.part(FATAL["fork server"]).children()]), 60)


def test_afterwards_the_yard_is_whole(yard: YardProcess, client: httpx.Client) -> None:
    yard.wait_state(client, yard.submit(client, tiny()), "succeeded")
    assert [p for p in yard.family() if not processes.alive(p.pid)] == [], "no zombies"
