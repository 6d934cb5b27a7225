"""The orderly end: SIGTERM asks, all ranks agree behind which step they stop (norm.StepTotals), save, and leave."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """Training was stopped by SIGTERM behind a whole step, and saved there."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped by SIGTERM with {step} steps done; a checkpoint of them was saved")
        self.step = step


class StopRequest:
    """`asked` once SIGTERM came. Until `listen` the signal ends the process at once: there is nothing to save."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        """To be called in the main thread."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))
