"""What a worker measures between attempts, while nothing else uses its devices: itself once, and models on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workers.calibration import Calibration
from workers.profiling import Profiling


class IdleMeasurements:
    """One measurement at a time; answers go to the controller. Used by the supervisor's thread unless
    stated otherwise."""

    def __init__(self, calibration: Calibration, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
        """`tell(kind, body)` publishes an event (`Relay.tell`)."""
        self.calibration, self._profiling, self._tell = calibration, Profiling(), tell

    @property
    def running(self) -> bool:
        return self.calibration.running or self._profiling.running

    def ask(self, number: int, spec: dict[str, Any]) -> None:
        """Takes a request for a profile; an invalid one, and one whose answer was lost, is answered at once."""
        if answer := self._profiling.ask(number, spec):
            self._tell("profile", answer)

    @property
    def profiles(self) -> list[int]:
        """Ids of the requests for profiles that have no answer yet. May be read from any thread."""
        return self._profiling.pending

    def cancel(self, number: int) -> None:
        self._profiling.cancel(number)

    def ended(self) -> bool:
        """Whether a measurement has just ended, successfully or not, so that attempts may use the devices again."""
        calibrated = self.calibration.poll()
        answer = self._profiling.poll()
        if answer is not None:
            self._tell("profile", answer)
        return calibrated or answer is not None

    def begin(self) -> None:
        """Begins the next measurement, if there is one and none runs; the calibration is the first."""
        if self.running:
            return
        if not self.calibration.tried:
            self.calibration.begin()
        elif self._profiling.waiting and (answer := self._profiling.begin()):
            self._tell("profile", answer)

    def make_way(self) -> None:
        """For an attempt that has arrived: a calibration is stopped, and begins again once nothing runs. A profile is
        not, as somebody asked for it; the controller allows for its time."""
        self.calibration.put_off()

    def stop(self) -> None:
        self.calibration.stop()
        self._profiling.stop()
