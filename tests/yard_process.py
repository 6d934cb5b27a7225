"""A real embedded yard for tests: the command that users start, in a temporary data folder."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx
import psutil

from dashboard.yard.home import PREFIX, READ, Home
from parallel_core import processes
from parallel_core.plan.strategy import model_flops
from parallel_core.spec import ModelSpec
from tests.families import family_of, killed_after
from tests.scratch import fresh_folder

ROOT = Path(__file__).resolve().parent.parent
UP_LIMIT_S = 90.0
LOOKS_S = (0.05, 0.2)
"""First and longest pause between two probes of `wait_for`: each probe costs the yard, which shares the processor, some
work.
"""
PORTS = (15_000, 32_000)
ANSWER_S = 30.0
LIVE = ("queued", "starting", "running", "cancelling")
"""States of a run that has not ended."""
OF_ANOTHER_PROJECT = {
    "DATABASE_URL": "postgres://another:project@127.0.0.1:9/theirs",
    "REDIS_URL": "redis://127.0.0.1:9/0",
    "BROKER_URL": "redis://127.0.0.1:9/0",
    "CELERY_BROKER_URL": "redis://127.0.0.1:9/0",
    "APP": "theirs",
    "DJANGO_SETTINGS_MODULE": "theirs.settings",
    "SECRET_KEY": "theirs",
    "DEBUG": "true",
    "LOG_LEVEL": "trace",
    "GUNICORN_CMD_ARGS": "--worker-class theirs",
    "PYTHONDONTWRITEBYTECODE": "1",
    "http_proxy": "http://127.0.0.1:9",
}
"""What a developer's shell may hold. Every yard of the tests is started in such a shell, and must heed none of it."""
T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], limit: float = 60, each: Callable[[], object] = object) -> T:
    """Calls `each`, then `probe`, until that is truthy; AssertionError that names `what` after `limit` seconds."""
    deadline = time.monotonic() + limit
    pause, longest = LOOKS_S
    while True:
        each()
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"{what}: not within {limit:.0f} s"
        time.sleep(pause)
        pause = min(1.2 * pause, longest)


def free_port() -> int:
    """A free port below those that the kernel gives to outgoing connections: one of them could otherwise take it before
    the server that the port is meant for listens.
    """
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection may linger
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/accounts/login/").is_success
    except httpx.TransportError:
        return False


def calibrate(home: Path, name: str | None = None) -> None:
    """Writes the calibration file that the worker of that name (default: this host's) would measure at its first start.
    The measurement takes longer than most tests.
    """
    folder = home / "workers" / (name or socket.gethostname())
    folder.mkdir(parents=True, exist_ok=True)
    model = ModelSpec(layers=4, hidden=64, heads=4, seq=64)
    found = {"device": "cpu", "model": model.model_dump(mode="json"), "global_batch": 16, "step_time": 0.1}
    found["flops_per_s"] = model_flops(model, 16) / 0.1
    (folder / "calibration.json").write_text(json.dumps(found))


class Questions:
    """A process in a yard's environment that evaluates Python expressions over its models, so that Django is set up
    only once.
    """

    CODE = """
import json, sys, traceback
import django; django.setup()
from dashboard.runs.models import *
for line in sys.stdin:
    try:
        answer = json.dumps({"is": eval(json.loads(line))})
    except Exception:
        answer = json.dumps({"error": traceback.format_exc()})
    print(answer, flush=True)
"""

    def __init__(self, env: dict[str, str]) -> None:
        command = [sys.executable, "-c", self.CODE]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, expression: str) -> Any:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(expression), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["is"]

    def close(self) -> None:
        with killed_after(self.process):
            self.process.communicate(timeout=ANSWER_S)


class Web:
    """A running dashboard: a client signed in as its admin, and the API calls that tests need."""

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def password(self) -> str:
        """The admin's password."""
        raise NotImplementedError

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A client signed in as the admin, with the CSRF header set."""
        with httpx.Client(base_url=self.url, timeout=30, follow_redirects=True) as client:
            self._sign_in(client)
            yield client

    def _sign_in(self, client: httpx.Client) -> None:
        page = client.get("/accounts/login/")
        match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert match, page.text[:500]
        form = {"username": "admin", "password": self.password, "csrfmiddlewaretoken": match[1]}
        answer = client.post("/accounts/login/", data=form, headers={"Referer": self.url})
        assert "sessionid" in client.cookies, answer.text[:500]
        client.headers.update({"X-CSRFToken": client.cookies["csrftoken"], "Referer": self.url})

    def submit(self, client: httpx.Client, spec: dict[str, Any], **fields: Any) -> int:
        answer = client.post("/api/v1/runs", json={"spec": spec, "name": "test", **fields})
        assert answer.status_code in {200, 201}, answer.text
        return int(answer.json()["data"]["id"])

    def run_of(self, client: httpx.Client, run: int) -> dict[str, Any]:
        answer = client.get(f"/api/v1/runs/{run}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["data"])

    def wait_state(self, client: httpx.Client, run: int, *states: str, limit: float = 90.0) -> dict[str, Any]:
        last: dict[str, Any] = {}

        def probe() -> dict[str, Any] | None:
            try:
                last.update(self.run_of(client, run))
            except httpx.TransportError:
                return None
            return last if last["state"] in states else None

        try:
            return wait_for(f"run {run} in {states}", probe, limit)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last.get('state')}: {last.get('detail')}") from None

    def cancel_all(self) -> None:
        """Waits for the web, cancels every run that has not ended, and waits until each has."""
        wait_for("the web", lambda: answers(self.url))
        with self.client() as client:

            def none_left() -> bool:
                answer = client.get("/api/v1/runs", params={"state": LIVE, "per_page": 500})
                assert answer.status_code == 200, answer.text
                live = answer.json()["data"]
                for run in live:
                    client.post(f"/api/v1/runs/{run['id']}/cancel")
                return not live

            wait_for("the end of all runs", none_left)


class YardProcess(Web):
    """`python -m dashboard.yard up`, its address, and a signed-in client of its API."""

    command: Sequence[str] = (sys.executable, "-m", "dashboard.yard", "up")
    open: ClassVar[list[YardProcess]] = []
    """Yards that were started and not closed yet; their logs are added to the report of a failed test."""

    def __init__(self, **env: str) -> None:
        self.home = fresh_folder("yard")
        self.port = free_port()
        of_a_real_yard = {PREFIX + name for name in READ}
        kept = os.environ.keys() - {"TRAINYARD_TESTING"} - of_a_real_yard
        self.env = {name: os.environ[name] for name in kept} | OF_ANOTHER_PROJECT
        self.env |= {"TRAINYARD_HOME": str(self.home), "TRAINYARD_PORT": str(self.port), **env}
        self.process: subprocess.Popen[bytes] | None = None
        self._questions: Questions | None = None
        self._has_been_up = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        return (self.home / "admin-password").read_text().strip()

    def calibrated(self) -> YardProcess:
        """The yard, with its worker calibrated in advance, so that it measures nothing before its first run."""
        calibrate(self.home)
        return self

    def up(self) -> YardProcess:
        with (self.home / "yard.out").open("wb") as out:
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        if self not in self.open:
            self.open.append(self)
        wait_for("the yard's address", self._greeted, UP_LIMIT_S)
        self._has_been_up = True
        return self

    def restore(self) -> None:
        """Cancels what a failed test left under way, which would hold the devices that later ones need; starts a yard
        that it left ended. Nothing for a yard that never came up.
        """
        if self._has_been_up and self.process is not None:
            if self.process.poll() is not None:
                self.up()
            self.cancel_all()

    def _greeted(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output()
        return "Sign in as" in self.output()

    def output(self) -> str:
        return (self.home / "yard.out").read_text()

    def log(self, part: str) -> str:
        path = self.home / "logs" / f"{part}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def tails(self, characters: int = 6000) -> Iterator[tuple[str, str]]:
        """Name and last characters of every log in the yard's folder."""
        for path in sorted((*self.home.glob("*.log"), *self.home.glob("logs/*.log"))):
            if text := path.read_text(errors="replace")[-characters:]:
                yield path.name, text

    def family(self) -> list[psutil.Process]:
        """Every process below the yard, ranks included (they have sessions of their own, but are still descendants)."""
        assert self.process is not None
        return family_of(self.process)

    def part(self, *words: str) -> psutil.Process:
        """The one process below the yard whose command line contains all the words."""

        def look() -> psutil.Process | None:
            for process in self.family():
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if all(word in line for word in words):
                    return process
            return None

        return wait_for(f"a process of {words}", look)

    def own_env(self) -> dict[str, str]:
        """The environment of the yard's own processes, as `./run shell` sets it."""
        return Home(self.home).environment(self.port, self.env)

    def shell(self, code: str) -> subprocess.CompletedProcess[str]:
        """Runs Python code in the yard's own environment."""
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=ROOT, env=self.own_env(), capture_output=True, text=True, timeout=60, check=False
        )

    def query(self, expression: str) -> Any:
        """The value of a Python expression over the yard's models (`Run`, `Attempt`, `RankInfo`, `Event`)."""
        if self._questions is None:
            self._questions = Questions(self.own_env())
        return self._questions.ask(expression)

    def stop(self, number: int = signal.SIGINT) -> list[psutil.Process]:
        """Sends the signal, waits for the yard to end, and returns the processes of the yard that are still alive."""
        assert self.process is not None
        family = self.family()
        self.process.send_signal(number)
        self.process.wait(30)
        return [p for p in psutil.wait_procs(family, timeout=15)[1] if processes.alive(p.pid)]

    def close(self) -> None:
        if self in self.open:
            self.open.remove(self)
        try:
            with killed_after(self.process):
                if self._questions is not None:
                    self._questions.close()
                if self.process is not None and self.process.poll() is None:
                    self.stop()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)


TINY: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 32},
    "train": {"steps": 12, "global_batch": 8},
}


def tiny(steps: int = 12, **parallel: Any) -> dict[str, Any]:
    """A spec that trains in a moment; `parallel` holds fields of ParallelSpec."""
    return {**TINY, "train": {**TINY["train"], "steps": steps}, "parallel": parallel}


def paced(steps: int, **parallel: Any) -> dict[str, Any]:
    """`tiny` with a wait of 100 ms for data in each step: it takes about as long on any machine and leaves the
    processor to the code under test.
    """
    return {**tiny(steps, **parallel), "inject": [{"kind": "slow_data", "ms": 100}]}
