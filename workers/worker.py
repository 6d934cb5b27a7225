"""Assembles a worker from supervisor, relay, heartbeat and control reader, and shuts it down in order."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import Any

from parallel_core.file_lock import FileLock
from parallel_core.observe.spool import Spool
from workers import preflight
from workers.calibration import Calibration
from workers.checkpoints import Dropped, unfound
from workers.contract import HEARTBEAT_S
from workers.heartbeat import Heartbeat
from workers.host_watch import HostWatch
from workers.outage import Outage
from workers.relay import Relay
from workers.settings import TELL_S, Settings
from workers.supervisor import Supervisor
from workers.wire import ControlReader, Publisher

log = logging.getLogger(__name__)

EXIT_S = 1.5
"""Seconds after that for the rest of the process to end by itself (Celery may wait for an unreachable broker)."""


class AlreadyRunning(RuntimeError):
    """Two workers would share one folder; the message says which."""


class Worker:
    """Everything of a worker except Celery. `start` starts its threads; `ask_to_leave` may be called in a signal
    handler."""

    def __init__(self, settings: Settings) -> None:
        """Raises AlreadyRunning if another worker of this name uses the folder."""
        self.settings = settings
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(settings)
        if said := unfound(settings):
            log.warning("%s", said)
        self.host = HostWatch.of(settings)
        outage = Outage()
        self.relay = Relay(Publisher(settings, outage), self._ended_published, Spool(settings.spool_bytes))
        devices = self.host.devices
        calibration = Calibration(settings.home, devices.kind)
        usable, named = lambda: devices.listed()[0], lambda: devices.gpus
        self.supervisor = Supervisor(settings, self.relay, usable, calibration, named)
        # A beat that is not answered gives up when the next one is due: else a short outage would cost the lease.
        beats = Publisher(settings, outage, HEARTBEAT_S)
        self.heartbeat = Heartbeat(beats, self.supervisor, settings, self.host)
        self.supervisor.on_running = self.heartbeat.poke
        self.control = ControlReader(settings, self.supervisor.control, outage)
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._left = threading.Event()

    def start(self) -> None:
        for one in (self.host.address, self.host.devices):  # so that the first heartbeat has them
            one.look()
        dropped = Dropped(self.settings.checkpoints)
        for thread in (self.relay, self.supervisor, *self.host.threads, dropped, self.heartbeat, self.control):
            thread.start()
        threading.Thread(target=self._ask_the_web, name="web", daemon=True).start()
        threading.Thread(target=self._leave_when_asked, name="leaver", daemon=True).start()

    def _ask_the_web(self) -> None:
        """Checks the worker's token against the web from time to time, and reports a refusal in the log and in
        heartbeats.

        So a wrong token shows at once, not with the first run on an uploaded text. A web that starts at the same time
        as this worker is tried again soon.
        """
        again = preflight.AGAIN_S
        while self.settings.url:
            why = preflight.refused_token(self.settings)
            if why != self.heartbeat.refused:
                log.warning("%s", why or "The web knows this worker's token now.")
                self.heartbeat.refused = why
                self.heartbeat.poke()
            time.sleep(again if why else preflight.REMIND_S)
            again = min(2 * again, preflight.REMIND_S) if why else preflight.AGAIN_S

    def accept(self, message: Any) -> bool:
        """Takes a StartMessage from the queue; see Supervisor.accept."""
        accepted = self.supervisor.accept(message)
        self.heartbeat.poke()
        return accepted

    def ask_to_leave(self) -> None:
        """Begins the orderly shut-down and returns at once. A SimpleQueue has no lock that could block a signal
        handler."""
        self._asked.put(None)

    def leave(self) -> None:
        """Shuts down in order, and waits for it."""
        self.ask_to_leave()
        self._left.wait(self.settings.leave_s + EXIT_S)

    def _ended_published(self, attempt: int) -> None:
        self.supervisor.roll.remove(attempt)
        self.heartbeat.poke()

    def _leave_when_asked(self) -> None:
        self._asked.get()
        deadline = time.monotonic() + self.settings.leave_s
        self.heartbeat.say_leaving(TELL_S)
        self.supervisor.leave()
        self.control.leave()
        if not self.supervisor.idle.wait(max(0.1, deadline - time.monotonic())):
            log.warning("some ranks did not end in time; they end with this process")
        self.supervisor.close()
        if not self.relay.leave(max(0.1, deadline - time.monotonic())):
            log.warning("not everything could be published; the rest follows at the next start")
        self.heartbeat.leave()
        self._left.set()
        time.sleep(EXIT_S)
        log.warning("leaving without waiting for the rest")
        os._exit(0)


def _lock(settings: Settings) -> FileLock:
    """Locks the folder for one worker. Raises AlreadyRunning."""
    lock = FileLock(settings.home / "worker.lock")
    if not lock.hold():
        raise AlreadyRunning(f"A worker named {settings.name} already runs with {settings.home}.")
    return lock
