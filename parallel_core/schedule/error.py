"""An error in a schedule, shown at its position."""

from __future__ import annotations

import re
from collections.abc import Callable

from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.text import grid


class ScheduleError(ValueError):
    """What is wrong with a schedule, followed by its grid with cell (`rank`, `index`) marked."""

    def __init__(self, message: str, schedule: Schedule, rank: int, index: int) -> None:
        super().__init__(f"{message}\n{grid(schedule, (rank, index))}")
        self.message, self.rank, self.index = message, rank, index

    def spell(self, spelling: Callable[[str], str]) -> None:
        """Writes its operations in another spelling, no cell of which is longer."""
        message, *rows = str(self).split("\n")
        self.message = spelling(message)
        rows = [re.sub(r"\S+", lambda cell: spelling(cell[0]).ljust(len(cell[0])), row).rstrip() for row in rows]
        self.args = ("\n".join([self.message, *rows]),)
