"""The supervisor's view of the fork server: one at a time, and a new one after the last has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from parallel_core.launch import Event, ForkServer, ServerLost, StartCommand

log = logging.getLogger(__name__)

RESPAWN_S = 1.0


class Forking:
    """Events come on the server's own thread. Used by the supervisor's thread; `close` by any thread."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._server: ForkServer | None = None
        self._spawn_at = 0.0
        self.ready = False
        """Whether the server has loaded the engine."""

    @property
    def up(self) -> bool:
        return self._server is not None

    def keep_up(self) -> None:
        """Starts a server if there is none, at most one in RESPAWN_S."""
        if self._server is not None or time.monotonic() < self._spawn_at:
            return
        try:
            self._server = ForkServer(self._on_event)
        except OSError:
            log.exception("the fork server cannot be started")
        self._spawn_at = time.monotonic() + RESPAWN_S

    def lost(self) -> None:
        """Notes that the server has ended."""
        self._server, self.ready = None, False

    def start(self, command: StartCommand) -> bool:
        """Starts an attempt's ranks. False if the server has ended: its event will follow, and the next server may get
        the command."""
        try:
            if self._server is not None:
                self._server.start(command)
        except ServerLost:
            return False
        return self._server is not None

    def stop(self, number: int, grace: float) -> bool:
        """Asks for the end of an attempt's ranks; False if there is no server to ask."""
        if self._server is None:
            return False
        try:
            self._server.stop(number, grace)
        except ServerLost:
            log.info("attempt %d ends with its fork server", number)
        return True

    def dump(self, number: int) -> None:
        """Makes the ranks of an attempt write where they are."""
        if self._server is not None:
            self._server.dump(number)

    def close(self) -> None:
        if self._server is not None:
            self._server.close(timeout=0.3)
