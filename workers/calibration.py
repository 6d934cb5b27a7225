"""How fast this host is: measured once, in a process of its own, while no attempt runs; kept in calibration.json."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from parallel_core import launch
from workers.folder import read_json, write_json

log = logging.getLogger(__name__)

LIMIT_S = 90.0
# The measuring process must not outlive us, and says so itself before it is anything else.
_CODE = (
    "import sys; from parallel_core import processes; processes.die_with(int(sys.argv[1])); "
    "from parallel_core.cli import main; sys.exit(main(sys.argv[2:]))"
)


class Calibration:
    """Used by one thread, which must live as long as the measurement: the process dies with the thread."""

    def __init__(self, home: Path, device: str) -> None:
        self._path = home / "calibration.json"
        self._device = device
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._give_up_at = 0.0
        known = read_json(self._path)
        self.result: dict[str, Any] | None = known if known.get("device") == device else None
        self.tried = self.result is not None

    @property
    def running(self) -> bool:
        return self._process is not None

    def begin(self) -> None:
        self.tried = True
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._give_up_at = time.monotonic() + LIMIT_S
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(os.getpid()), "calibrate", "--device", self._device],
            env=launch.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            start_new_session=True,
        )

    def poll(self) -> bool:
        """True once, when the measurement has ended, well or not."""
        if self._process is None or (self._process.poll() is None and time.monotonic() < self._give_up_at):
            return False
        code = self._process.poll()
        self.stop()
        if code == 0:
            self._keep()
        else:
            log.warning("calibration failed (%s); it is tried again at the next start", code)
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _keep(self) -> None:
        assert self._output is not None
        self._output.seek(0)
        with contextlib.suppress(ValueError, IndexError):
            self.result = json.loads(self._output.read().splitlines()[-1])
            write_json(self._path, self.result)
