"""Keeps the web of `./run` from serving before the database is prepared, while it already imports its pages."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

VARIABLE = "YARD_GATE"
"""Variable of the web's environment with the number of the file that it waits for. Without it, it does not wait."""
BEAT_S = 1.0


class Gate:
    """A pipe that is open as long as the gate is shut. Whoever has `reader` goes on when it ends: also when the yard
    that was to open it died."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        self.is_open = False

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a process that has `reader`, too, needs for `wait`."""
        return {VARIABLE: str(self.reader)}

    def open(self) -> None:
        """Lets through whoever waits now or later."""
        if not self.is_open:
            self.is_open = True
            os.close(self._writer)


def wait(beat: Callable[[], object]) -> None:
    """Returns when the gate that the environment names is open; calls `beat` every BEAT_S until then."""
    if told := os.environ.get(VARIABLE):
        while not select.select([int(told)], [], [], BEAT_S)[0]:
            beat()
