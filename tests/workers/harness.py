"""A worker process with its own broker; the test takes the controller's side of the contract and reads what it
publishes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from dashboard.yard import broker
from parallel_core import processes
from parallel_core.observe import progress
from tests.families import killed_after
from workers.contract import EVENTS, START_TASK, Channel, control_stream, queue_of
from workers.folder import Folder

ROOT = Path(__file__).resolve().parents[2]
NAME = "bench"
PATIENCE_S = 60.0


def tiny(steps: int = 6, **parallel: Any) -> dict[str, Any]:
    """The smallest run on 2 ranks; about 3 ms a step."""
    return {
        "model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 16},
        "parallel": {"dp": 2, **parallel},
        "train": {"steps": steps, "warmup_steps": 2, "global_batch": 4},
    }


def paced(steps: int, **parallel: Any) -> dict[str, Any]:
    """`tiny` with a wait of 20 ms for data in each step: on a fast machine, too, it still runs when a test looks."""
    return {**tiny(steps, **parallel), "inject": [{"kind": "slow_data", "ms": 20}]}


ENDLESS = paced(steps=1_000_000)


@dataclass
class Entry:
    worker: str
    boot: str
    kind: str
    body: dict[str, Any]
    data: bytes


@dataclass
class Bench:
    """One worker and its broker. `heard` holds every entry of EVENTS so far, in order."""

    home: Path
    heard: list[Entry] = field(default_factory=list)
    worker: subprocess.Popen[bytes] | None = None
    next_attempt: int = 1
    sent: set[int] = field(default_factory=set)
    """Attempts whose StartMessage was sent."""
    worker_env: dict[str, str] = field(default_factory=dict)
    """What the worker was last started with."""

    def __post_init__(self) -> None:
        self.broker_home = self.home / "broker"
        self.broker, self.url = broker.start(self.broker_home)
        self.redis = redis.Redis.from_url(self.url)
        self.app = Celery("sender", broker=self.url.replace("unix://", "redis+socket://"), fixups=[])

    # The worker

    @property
    def folder(self) -> Path:
        return self.home / "workers" / NAME

    def start_worker(self, **env: str) -> None:
        own = {"REDIS_URL": self.url, "TRAINYARD_HOME": str(self.home), "TRAINYARD_WORKER_NAME": NAME}
        given, self.worker_env = {"TRAINYARD_CPU_DEVICES": "2", "TZ": "JST-9", **env}, env
        with (self.home / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "workers"], cwd=ROOT, env={**os.environ, **own, **given}, stdout=log, stderr=log
            )

    def stop_worker(self, number: int = signal.SIGTERM) -> int:
        assert self.worker
        self.worker.send_signal(number)
        return self.worker.wait(PATIENCE_S)

    def log(self) -> str:
        return (self.home / "worker.log").read_text()

    def restart_broker(self, pause_s: float = 0.5) -> None:
        self.broker.kill()
        self.broker.wait()
        time.sleep(pause_s)  # the outage itself
        self.broker, _ = broker.start(self.broker_home)

    def restore(self) -> None:
        """Ends what a failed test left under way, which would hold the devices that later ones need, and starts again
        what it left stopped.
        """
        for process in (self.broker, self.worker):
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
        if self.broker.poll() is not None:
            self.broker, _ = broker.start(self.broker_home)
        if self.worker and self.worker.poll() is not None:
            self.start_worker(**self.worker_env)
        for attempt in self.under_way():
            self.control("fence", attempt)
        self.wait("end of what was under way", lambda: not self.under_way())

    def under_way(self) -> list[int]:
        """Attempts that were sent and whose processes may run, or have yet to start."""
        folders = [Folder(self.folder / "attempts" / str(attempt)) for attempt in sorted(self.sent)]
        return [folder.attempt for folder in folders if not folder.settled and folder.load().end is None]

    def close(self) -> None:
        with killed_after(self.broker), killed_after(self.worker):
            if self.worker and self.worker.poll() is None:
                self.worker.send_signal(signal.SIGCONT)
                self.stop_worker()
            self.broker.terminate()
            self.broker.wait(10)

    # The controller's side

    def send(
        self, spec: dict[str, Any], attempt: int | None = None, devices: tuple[int, ...] = (0, 1), **more: Any
    ) -> int:
        """Sends a StartMessage as the controller does, with `more` keys added; returns the attempt."""
        if attempt is None:
            attempt, self.next_attempt = self.next_attempt, self.next_attempt + 1
        node = {"worker": NAME, "devices": list(devices), "first_rank": 0, "address": "127.0.0.1"}
        message = {"run": attempt, "attempt": attempt, "number": 1, "spec": spec, "nodes": [node]}
        message |= more
        self.sent.add(attempt)
        self.app.send_task(START_TASK, args=[message], queue=queue_of(NAME), serializer="json")
        return attempt

    def control(self, kind: str, attempt: int, **more: Any) -> None:
        body = json.dumps({"kind": kind, "attempt": attempt, **more})
        self.redis.xadd(control_stream(NAME), {"body": body})

    def listen(self) -> None:
        """Consumes all available entries as the controller does: read, then delete."""
        answer: Any = self.redis.xrange(EVENTS)
        for entry_id, raw in answer:
            fields = {key.decode(): value for key, value in raw.items()}
            self.heard.append(
                Entry(
                    fields["worker"].decode(),
                    fields["boot"].decode(),
                    fields["kind"].decode(),
                    json.loads(fields["body"]),
                    fields.get("data", b""),
                )
            )
            self.redis.xdel(EVENTS, entry_id)

    def wait(self, what: str, found: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
        """Reads events until `found()` is truthy, and returns its value."""
        deadline = time.monotonic() + limit_s
        while True:
            self.listen()
            if result := found():
                return result
            assert time.monotonic() < deadline, f"no {what} within {limit_s:.0f} s; the worker's log:\n{self.log()}"
            time.sleep(0.05)

    def states(self, attempt: int, state: str) -> list[dict[str, Any]]:
        bodies = [entry.body for entry in self.heard if entry.kind == "attempt"]
        return [body for body in bodies if body["attempt"] == attempt and body["state"] == state]

    def wait_end(self, attempt: int) -> dict[str, Any]:
        return self.wait(f"end of attempt {attempt}", lambda: self.states(attempt, "ended"))[-1]

    def wait_running(self, attempt: int, step: int = 3) -> dict[int, processes.Recorded]:
        """Waits until every rank has reached `step`; returns the ranks' processes."""
        self.wait(f"running attempt {attempt}", lambda: self.states(attempt, "running"))
        recorded = self.recorded(attempt)

        def at_step() -> bool:
            places = [progress.read(self.folder / "attempts" / str(attempt), rank) for rank in recorded]
            return all(place is not None and place.step >= step for place in places)

        self.wait(f"step {step} of attempt {attempt}", at_step)
        return recorded

    def recorded(self, attempt: int) -> dict[int, processes.Recorded]:
        return Folder(self.folder / "attempts" / str(attempt)).load().processes

    def received(self, attempt: int, channel: Channel, rank: int) -> bytes:
        """A file assembled from its batches as the controller does; fails if a byte is missing."""
        data = bytearray()
        for entry in self.heard:
            body = entry.body
            key = (body.get("attempt"), body.get("channel"), body.get("rank"))
            if entry.kind == "batch" and key == (attempt, channel, rank) and body["end"] > len(data):
                assert body["start"] <= len(data), f"bytes {len(data)} to {body['start']} of {key} are missing"
                assert body["end"] - body["start"] == len(entry.data)
                data += entry.data[len(data) - body["start"] :]
        return bytes(data)


def none_alive(recorded: dict[int, processes.Recorded]) -> bool:
    return bool(recorded) and not any(processes.alive(*one) for one in recorded.values())
