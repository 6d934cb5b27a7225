"""Measures once how fast this host is, in a process of its own while no attempt runs; kept in calibration.json."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from workers.folder import read_json, write_json
from workers.measurement import Measurement

log = logging.getLogger(__name__)

LIMIT_S = 90.0


class Calibration:
    """Used by one thread, which must live as long as the measurement because its process dies with the thread."""

    def __init__(self, home: Path, device: str) -> None:
        self._path = home / "calibration.json"
        self._device = device
        self._measurement = Measurement(LIMIT_S)
        known = read_json(self._path)
        self.result: dict[str, Any] | None = known if known.get("device") == device else None
        self.tried = self.result is not None

    @property
    def running(self) -> bool:
        return self._measurement.running

    def begin(self) -> None:
        self.tried = True
        self._measurement.begin(["calibrate", "--device", self._device])

    def poll(self) -> bool:
        """True once, when the measurement has ended, successfully or not."""
        ended = self._measurement.poll()
        if ended is None:
            return False
        if ended.code == 0 and (found := ended.result) is not None:
            self.result = found
            write_json(self._path, found)
        else:
            log.warning("calibration failed (%s: %s); it is tried again at the next start", ended.code, ended.last)
        return True

    def put_off(self) -> None:
        """Stops it if it runs, as if it had not been begun."""
        if self.running:
            self.stop()
            self.tried = False

    def stop(self) -> None:
        self._measurement.stop()
