"""The controller as a separate process on a database file: killed while data arrives, stopped, cut off from the
broker.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from dashboard.yard import broker
from parallel_core.observe.records import POINT
from tests.dashboard.database_file import NAME, ROOT, env_of, make_database
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.receiver import listening

DEADLINE_S = 60.0
PACE_S = 0.02
"""Seconds between two bundles of points: faster than any worker sends, and no more than can be stored."""
SEED = """
import django; django.setup()
from django.contrib.auth.models import User
from dashboard.runs import services
from tests.dashboard.fake_worker import spec
owner = User.objects.create_superuser("root")
services.submit(owner=owner, spec=spec(dp=2))
"""


class Yard:
    """A broker, a database file with one queued run, and as many controllers as a test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server, self.url = broker.start(folder)
        self.env = env_of(folder, self.url)
        self.controllers: list[subprocess.Popen[bytes]] = []
        make_database(folder, self.env, SEED)

    def start_controller(self) -> subprocess.Popen[bytes]:
        with (self.folder / "controllers.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "manage.py", "controller"], cwd=ROOT, env=self.env, stderr=log)
        self.controllers.append(process)
        return process

    def log(self) -> str:
        return (self.folder / "controllers.log").read_text()

    def restart_broker(self) -> None:
        self.server.kill()
        self.server.wait(10)
        time.sleep(2)  # long enough for several attempts to reconnect
        self.server, _ = broker.start(self.folder)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        database = sqlite3.connect(self.folder / NAME, timeout=20)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def state(self) -> str:
        return str(self.ask("SELECT state FROM runs_run")[0][0])

    def stored_steps(self) -> list[int]:
        chunks = self.ask("SELECT data FROM runs_serieschunk WHERE name = 'loss' AND rank = 0 ORDER BY id")
        return [int(step) for (data,) in chunks for step in np.frombuffer(data, POINT)["step"]]

    def place(self, peer: Peer) -> int:
        """The attempt that a controller placed for the queued run, once it is running."""
        until(lambda: bool(peer.tasks()), peer.beat)
        attempt = int(peer.tasks()[0]["attempt"])
        peer.running(attempt)
        return attempt

    def close(self) -> None:
        for process in [*self.controllers, self.server]:
            process.kill()
            process.wait(10)


def until(true: Callable[[], bool], each: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {DEADLINE_S:.0f} s"
        each()
        time.sleep(0.05)


@pytest.fixture
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    yard = Yard(tmp_path_factory.mktemp("y"))
    yield yard
    yard.close()


def test_kill_9_again_and_again_loses_and_doubles_no_point(yard: Yard) -> None:
    peer = Peer(yard.url)
    controller = yard.start_controller()
    attempt = yard.place(peer)
    first = 0
    for _ in range(3):
        stored = len(yard.stored_steps())
        while len(yard.stored_steps()) < stored + 300:
            peer.beat(attempt)
            for _ in range(20):
                peer.send(attempt, points_frame(first, 5))
                first += 5
            time.sleep(PACE_S)
        controller.send_signal(signal.SIGKILL)
        controller.wait(10)
        controller = yard.start_controller()
    peer.ended(attempt)
    until(lambda: yard.state() == "succeeded")
    until(lambda: bool(yard.ask("SELECT 1 FROM runs_attempt WHERE settled")), peer.obey)
    assert yard.stored_steps() == list(range(first))


def test_a_broker_that_restarts_costs_nothing(yard: Yard) -> None:
    peer = Peer(yard.url)
    yard.start_controller()
    attempt = yard.place(peer)
    peer.send(attempt, points_frame(0, 10))
    until(lambda: len(yard.stored_steps()) == 10, lambda: peer.beat(attempt))
    yard.restart_broker()
    peer.redis = redis.Redis.from_url(yard.url)
    peer.send(attempt, points_frame(10, 10))
    until(lambda: len(yard.stored_steps()) == 20, lambda: peer.beat(attempt))
    assert yard.state() == "running"
    until(lambda: "answer again" in yard.log())
    lines = [line for line in yard.log().splitlines() if "is away" in line]
    assert lines and len(lines) == len({line.split("is away", 1)[1] for line in lines}), "each reason is logged once"


def test_the_second_takes_over_when_the_first_dies_and_stops_when_told(yard: Yard) -> None:
    first = yard.start_controller()
    peer = Peer(yard.url)
    attempt = yard.place(peer)
    until(lambda: yard.state() == "running", lambda: peer.beat(attempt))
    second = yard.start_controller()
    first.kill()
    first.wait(10)
    peer.send(attempt, points_frame(0, 3))
    until(lambda: len(yard.stored_steps()) == 3, lambda: peer.beat(attempt))
    second.terminate()
    assert second.wait(DEADLINE_S) == 0


CANCEL = """
import django; django.setup()
from dashboard.runs import states
from dashboard.runs.models import Run
from dashboard.webhook.models import Webhook
Webhook.objects.create(url="{}/hook", origin="http://yard")
states.cancel_queued(Run.objects.get())
"""


@pytest.mark.full
def test_the_controllers_thread_posts_what_ended_before_it_started(yard: Yard) -> None:
    with listening() as receiver:
        script = CANCEL.format(receiver.address)
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=yard.env, check=True)
        yard.start_controller()
        until(lambda: bool(receiver.got))
    ((path, body),) = receiver.got
    assert (path, body["event"], body["state"], body["link"]) == (
        "/hook",
        "run.ended",
        "cancelled",
        "http://yard/runs/1/",
    )
