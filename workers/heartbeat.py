"""The heartbeat: every HEARTBEAT_S, what this host is and where each rank of its live attempts is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import redis

from parallel_core.known_fields import later
from parallel_core.version import version
from workers import devices
from workers.contract import HEARTBEAT_S, TASKS, HeartbeatBody
from workers.host_watch import HostWatch
from workers.outage import is_away
from workers.settings import Settings
from workers.supervisor import Supervisor
from workers.wire import Publisher

log = logging.getLogger(__name__)

MAX_BACKLOG = 2048
"""With more unconsumed entries than this no heartbeat is added, because it would not be read in time."""


class Heartbeat(threading.Thread):
    """Publishes heartbeats; one that cannot be published is dropped, because only the newest matters."""

    def __init__(self, publisher: Publisher, supervisor: Supervisor, settings: Settings, host: HostWatch) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._publisher, self._supervisor, self._settings, self._host = publisher, supervisor, settings, host
        self._poked = threading.Event()
        self._going, self._gone = threading.Event(), False
        self._told_so = threading.Event()
        self.refused = ""
        """Why the web refuses to give this worker uploaded texts, as a sentence; '' if it does not."""

    def poke(self) -> None:
        """Sends the next heartbeat now, because an attempt began or ended."""
        self._poked.set()

    def say_leaving(self, timeout: float) -> None:
        """From here on every heartbeat says that this worker leaves; returns once one was sent, or after `timeout`
        seconds."""
        self._going.set()
        self.poke()
        self._told_so.wait(timeout)

    def leave(self) -> None:
        self._gone = True
        self.poke()

    def run(self) -> None:
        while not self._gone:
            begun = time.monotonic()
            going = self._going.is_set()
            self._beat()
            if going:
                self._told_so.set()
            # Counted from the start of this beat, so that early beats (pokes) never delay the next one.
            self._poked.wait(max(0.0, begun + HEARTBEAT_S - time.monotonic()))
            self._poked.clear()

    def _beat(self) -> None:
        try:
            if self._publisher.backlog() < MAX_BACKLOG:
                self._publisher.add("heartbeat", self.body())
        except redis.RedisError as error:
            if not is_away(error):  # else logged once for all threads, by the publisher
                log.warning("no heartbeat: %s", error)
        except Exception:
            log.exception("no heartbeat")

    def body(self) -> HeartbeatBody:
        total, available = devices.host_memory()
        usable, unusable = self._host.devices.listed()
        body = HeartbeatBody(
            host=self._host.address.known,
            version=version(),
            time=time.time(),
            devices=usable,
            unusable=unusable,
            load=devices.load_average(),
            memory_total=total,
            memory_available=available,
            attempts=self._supervisor.roll.progress(),
            shared_checkpoints=self._settings.shared_checkpoints is not None,
            across_hosts=self._settings.across_hosts,
            tasks=list(TASKS),
            fields=later(),
            leaving=self._going.is_set(),
            texts=self._host.texts.shown,
            profiles=self._supervisor.between.profiles,
            still=self._supervisor.roll.still(),
            refused=self.refused,
        )
        self._host.add_seen(body)
        calibration: dict[str, Any] | None = self._supervisor.between.calibration.result
        if calibration:
            body["calibration"] = calibration
        return body
