"""A command of the engine that measures this host, in a process of its own that cannot outlive us."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from parallel_core import launch

# The measuring process must not outlive us, and says so itself before it is anything else.
_CODE = (
    "import sys; from parallel_core import processes; processes.die_with(int(sys.argv[1])); "
    "from parallel_core.cli import main; sys.exit(main(sys.argv[2:]))"
)


class Measurement:
    """Used by one thread, which must live as long as the process: that dies with the thread."""

    def __init__(self, limit: float) -> None:
        """Killed after `limit` seconds."""
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._give_up_at = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None

    def begin(self, arguments: Sequence[str], text: str = "") -> None:
        """Starts `python -m parallel_core` with these; `text` is what it reads from stdin."""
        given, self._output = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        given.write(text.encode())
        given.seek(0)
        self._give_up_at = time.monotonic() + self._limit
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(os.getpid()), *arguments],
            env=launch.environment(),
            stdin=given,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        given.close()

    def poll(self) -> tuple[int | None, str] | None:
        """Once, when it has ended or was given up: (exit code, None where given up; the last line it wrote)."""
        if self._process is None or (self._process.poll() is None and time.monotonic() < self._give_up_at):
            return None
        code = self._process.poll()
        self.stop()
        assert self._output is not None
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        self._output.close()
        return code, lines[-1] if lines else ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
