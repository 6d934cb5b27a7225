"""Runs a command of the engine that measures this host, in a process that cannot outlive the worker."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from parallel_core import launch

# The first thing the process does is to tie its life to ours: it must not outlive us.
_CODE = (
    "import sys; from parallel_core import processes; processes.die_with(int(sys.argv[1])); "
    "from parallel_core.cli import main; sys.exit(main(sys.argv[2:]))"
)


@dataclass(frozen=True)
class Ended:
    """The end of a measurement: `code` is None if it was stopped at its limit; `text` is its whole output."""

    code: int | None
    text: str

    @property
    def last(self) -> str:
        """The last line that is not blank."""
        return next((line for line in reversed(self.text.splitlines()) if line.strip()), "")

    @property
    def result(self) -> dict[str, Any] | None:
        """The last line that is a JSON object; None if there is none. Libraries may write more as the process ends."""
        for line in reversed(self.text.splitlines()):
            with contextlib.suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    return found
        return None


class Measurement:
    """Used by one thread, which must live as long as the process because that dies with the thread."""

    def __init__(self, limit: float) -> None:
        """The process is killed after `limit` seconds."""
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._give_up_at = 0.0

    @property
    def running(self) -> bool:
        return self._process is not None

    def begin(self, arguments: Sequence[str], text: str = "") -> None:
        """Starts `python -m parallel_core` with these arguments; `text` is its stdin."""
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

    def poll(self) -> Ended | None:
        """The end of the process, once, when it has ended or reached its limit; else None."""
        if self._process is None or (self._process.poll() is None and time.monotonic() < self._give_up_at):
            return None
        code = self._process.poll()
        self.stop()
        assert self._output is not None
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self._output.close()
        return Ended(code, text)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
