"""An error in a schedule, shown at its position."""

from __future__ import annotations

from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.text import grid


class ScheduleError(ValueError):
    """What is wrong with a schedule, followed by its grid with cell (`rank`, `index`) marked."""

    def __init__(self, message: str, schedule: Schedule, rank: int, index: int) -> None:
        super().__init__(f"{message}\n{grid(schedule, (rank, index))}")
        self.message, self.rank, self.index = message, rank, index
