"""Orderly shutdown: on SIGTERM all ranks agree on the step after which they stop (norm.StepTotals), save, and exit."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """Training was stopped by SIGTERM after a complete step, and saved there."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped by SIGTERM with {step} steps done; a checkpoint of them was saved")
        self.step = step


class StopRequest:
    """`asked` is set once SIGTERM was received. Before `listen` the signal ends the process at once: there is nothing
    to save."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        """Installs the signal handler; must be called in the main thread."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))
