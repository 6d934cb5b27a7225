"""Starts the embedded yard and keeps it up until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import FrameType

from dashboard.yard import broker, sign_in
from dashboard.yard.commands import port_number
from dashboard.yard.gate import Gate
from dashboard.yard.home import ROOT, Home
from dashboard.yard.processes import Part, last_line, stop_in_order
from parallel_core.file_lock import FileLock
from workers.settings import Settings, socket_url

HOST = "127.0.0.1"
FIRST_PORT = 8000
WEB_LIMIT_S = 60.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this host itself: a proxy in the environment knows another host by the name 127.0.0.1."""
LEAST_FREE = 1 << 20
"""Bytes on the disk of the data folder below which it counts as full."""
EXIT_S = 0.5
"""Seconds for the process to end once its work is done, before it is killed."""


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: the yard goes on without it
        print(text, flush=True)


def web_socket() -> socket.socket:
    """A socket that listens on TRAINYARD_PORT if it is set, else on the first free port from 8000 on.

    It listens at once: two sockets that are only bound can share a port, and two yards would take the same one. Raises
    SystemExit if no port is free.
    """
    wanted = os.environ.get("TRAINYARD_PORT", "")
    try:
        candidates = [port_number(wanted)] if wanted else range(FIRST_PORT, FIRST_PORT + 100)
    except ValueError as error:
        raise SystemExit(f"TRAINYARD_PORT: {error}.") from None
    for port in candidates:
        if found := _listening(port):
            return found
    raise SystemExit(f"Port {wanted or '8000-8099'} is taken. Name a free one: ./run --port NUMBER.")


def _listening(port: int) -> socket.socket | None:
    """A socket that listens on the port; None if it is taken. Raises SystemExit if only root may open it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
        made.listen()
    except OSError as error:
        made.close()
        if isinstance(error, PermissionError):
            raise SystemExit(f"Only root may open port {port} on this host; use one above 1023.") from None
        return None
    return made


class Yard:
    """The processes of one data folder: broker, web, controller, analyst, worker."""

    def __init__(self, home: Home) -> None:
        """Raises ValueError for a setting that cannot be used, and SystemExit for what the lock and the port forbid."""
        self.home = home
        home.prepare()
        self.lock = self._lock()
        self.listener = web_socket()
        self.port = self.listener.getsockname()[1]
        self.env = home.environment(self.port)
        self.stopping = False
        self.preparation: subprocess.Popen[str] | None = None
        self.signs_in = ""
        python = sys.executable
        serve = [python, "-m", "gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application"]
        # Each gunicorn gets the yard's own socket, also one that is started again: no other program takes the port.
        web = [*serve, "--bind", f"fd://{self.listener.fileno()}", "--workers", "1"]
        self.broker = self._part("redis", broker.command(home.broker, home.socket), 0.5)
        self.broker.variables = broker.VARIABLES
        self.gate = Gate()
        self.web = self._part("web", web, 1.0, pass_fds=(self.listener.fileno(), self.gate.reader))
        self.web.variables = self.gate.variables
        self.controller = self._part("controller", [python, "manage.py", "controller"], 1.0)
        self.worker = self._part("worker", [python, "-m", "workers"], EXIT_S + Settings.from_env(self.env).leave_s)
        self.analyst = self._part("analyst", [python, "manage.py", "analyst"], 1.0)
        self.parts = [self.broker, self.web, self.controller, self.analyst, self.worker]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _part(self, name: str, command: list[str], stop_after: float, pass_fds: tuple[int, ...] = ()) -> Part:
        log, told = self.home.logs / f"{name}.log", (self._announce_exit, self._announce_failure)
        return Part(name, command, log, stop_after, pass_fds, on_exit=told[0], on_failure=told[1])

    def _lock(self) -> FileLock:
        """Locks the data folder for this yard. Raises SystemExit if it is locked."""
        lock = FileLock(self.home.lock)
        if not lock.hold():
            raise SystemExit(f"This yard is already up: {lock.read_note().strip()}")
        return lock

    def _announce_exit(self, name: str, code: int) -> None:
        log = self.home.logs / f"{name}.log"
        said = last_line(log) or "nothing"
        say(f"{name} ended ({code}); starting it again. It said last: {said}\nIts log: {log}")
        if self._disk_is_full():  # then the log has not what it said, either
            say(f"The disk of {self.home.path} is full: free some of it. What the yard does meanwhile is not kept.")

    def _disk_is_full(self) -> bool:
        return shutil.disk_usage(self.home.path).free < LEAST_FREE

    def _announce_failure(self, name: str, error: Exception) -> None:
        say(f"{name} cannot be started: {error}. It is tried again.")

    def run(self) -> int:
        """Starts everything, watches it, and stops it on INT, on TERM, or when the terminal goes away, unless that is
        to be ignored (nohup). Returns the exit status."""
        started = time.monotonic()
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            signal.signal(number, self._stop)
        try:
            self._start()
            self._greet(time.monotonic() - started)
            while not self.stopping:
                for part in self.parts:
                    part.watch(self.env, ROOT)
                time.sleep(0.2)
        finally:
            self._finish()
        return 0

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self.stopping:
            return
        self.stopping = True
        raise SystemExit(0)

    def _start(self) -> None:
        """The web imports its pages, which takes it longest, beside the preparation. All that runs no page starts after
        it: on two cores they would keep it waiting for one."""
        try:
            broker.end_left(socket_url(self.home.socket))
        except TimeoutError as error:
            raise SystemExit(str(error)) from None
        self.broker.start(self.env, ROOT)
        self.web.start(self.env, ROOT)
        self.preparation = sign_in.prepare(self.home, self.env)
        if self.preparation is None:
            if self._disk_is_full():
                raise SystemExit(
                    f"Not started: the disk of {self.home.path} is full. Free some of it, then start again."
                )
            raise SystemExit("The database could not be prepared; the reason stands above.")
        self._wait_for_broker()
        self.gate.open()
        self._wait_for_web()
        for part in (self.controller, self.analyst, self.worker):
            part.start(self.env, ROOT)
        self.signs_in = sign_in.verified(self.preparation)
        self.lock.write_note(f"{self.url}\n")

    def _wait_for_broker(self) -> None:
        try:
            broker.wait_ready(self.env["REDIS_URL"])
        except TimeoutError as error:
            said = last_line(self.broker.log) or "nothing"
            raise SystemExit(f"{error} It said last: {said}\nIts log: {self.broker.log}") from None

    def _wait_for_web(self) -> None:
        deadline = time.monotonic() + WEB_LIMIT_S
        while time.monotonic() < deadline:
            try:
                with DIRECT.open(f"{self.url}/accounts/login/", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                self.web.watch(self.env, ROOT)
                time.sleep(0.05)
        raise SystemExit(f"The web process did not answer within {WEB_LIMIT_S:.0f} s; see {self.home.logs / 'web.log'}")

    def _greet(self, seconds: float) -> None:
        say(f"\nTrainyard is up in {seconds:.1f} s:  {self.url}")
        say(sign_in.words(self.home, self.signs_in))
        say(f"Data: {self.home.path}   Stop: Ctrl-C\n")

    def _finish(self) -> None:
        """Stops the worker first: it reports its runs as interrupted, and the controller queues them again."""
        self.stopping = True
        if self.preparation is not None:
            sign_in.stop(self.preparation)
        running = any(part.process is not None for part in self.parts)
        self.listener.close()
        stop_in_order([[self.worker], [self.web, self.controller, self.analyst], [self.broker]])
        if running:
            say("Stopped.")
