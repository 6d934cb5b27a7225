"""A worker's parts, put together: supervisor, relay, heartbeat and control reader, and the way they leave."""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import threading
import time
from typing import IO, Any

from workers import checkpoints, preflight
from workers.calibration import Calibration
from workers.devices import Devices
from workers.disk import Disk
from workers.heartbeat import Heartbeat
from workers.outage import Outage
from workers.relay import Relay
from workers.settings import Settings
from workers.supervisor import Supervisor
from workers.wire import ControlReader, Publisher

log = logging.getLogger(__name__)

SEND_S = 1.0
"""For attempts that have saved and ended to send their last data; what is left is published at the next start."""
TELL_S = 0.5
"""To say that this worker leaves, before any of its attempts ends: else they would be placed here again."""
EXIT_S = 1.5
"""For the rest of the process to end by itself after that (Celery may wait for a broker that is away)."""


class AlreadyRunning(RuntimeError):
    """Two workers would share one folder; the text says which."""


class Worker:
    """Everything of a worker but Celery. Threads start with `start`; `ask_to_leave` may come from a signal handler."""

    def __init__(self, settings: Settings) -> None:
        """Raises AlreadyRunning where another worker of this name uses the folder."""
        self.settings = settings
        self._leave_s = settings.save_s + SEND_S
        settings.home.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(settings)
        devices = Devices(settings.cpu_devices, settings.gpu_shares)
        outage = Outage()
        self.relay = Relay(Publisher(settings, outage), self._ended_published)
        calibration = Calibration(settings.home, devices.kind)
        self.supervisor = Supervisor(settings, self.relay, devices.read, calibration)
        self.disk = Disk(settings.checkpoints)
        self.heartbeat = Heartbeat(Publisher(settings, outage), self.supervisor, devices.read, settings, self.disk)
        self.supervisor.on_running = self.heartbeat.poke
        self.control = ControlReader(settings, self.supervisor.control, outage)
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._left = threading.Event()

    def start(self) -> None:
        for thread in (self.relay, self.supervisor, self.disk, self.heartbeat, self.control):
            thread.start()
        threading.Thread(target=checkpoints.sweep, args=(self.settings,), name="sweep", daemon=True).start()
        threading.Thread(target=self._ask_the_web, name="web", daemon=True).start()
        threading.Thread(target=self._leave_when_asked, name="leaver", daemon=True).start()

    def _ask_the_web(self) -> None:
        """A token that is wrong is told now, not by the first run over an uploaded text; here and on Fleet. A web that
        starts beside this worker is asked again soon."""
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
        """A StartMessage from the queue; see Supervisor.accept."""
        accepted = self.supervisor.accept(message)
        self.heartbeat.poke()
        return accepted

    def ask_to_leave(self) -> None:
        """Begin the orderly end; returns at once. A SimpleQueue takes no lock that a signal handler could meet."""
        self._asked.put(None)

    def leave(self) -> None:
        """The orderly end, waited for."""
        self.ask_to_leave()
        self._left.wait(TELL_S + self._leave_s + EXIT_S)

    def _ended_published(self, attempt: int) -> None:
        self.supervisor.roll.remove(attempt)
        self.heartbeat.poke()

    def _leave_when_asked(self) -> None:
        self._asked.get()
        self.heartbeat.say_leaving(TELL_S)
        deadline = time.monotonic() + self._leave_s
        self.supervisor.leave()
        self.control.leave()
        if not self.supervisor.idle.wait(self._leave_s):
            log.warning("some ranks did not end in time; they end with this process")
        self.supervisor.close()
        if not self.relay.leave(max(0.1, deadline - time.monotonic())):
            log.warning("not everything could be published; the rest follows at the next start")
        self.heartbeat.leave()
        self._left.set()
        time.sleep(EXIT_S)
        log.warning("leaving without waiting for the rest")
        os._exit(0)


def _lock(settings: Settings) -> IO[str]:
    """One worker a folder. The kernel drops the lock with the process, however that ends."""
    file = (settings.home / "worker.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"A worker named {settings.name} already runs with {settings.home}.") from None
    return file
