"""A subprocess of the analyst. It ends with the analyst, has its low priority and a memory limit, and prints its
results in lines."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from dashboard.yard.processes import die_with_parent, told_parent
from parallel_core.processes import LINUX

TICK_S = 0.1
"""The longest time in seconds that the analyst waits for a line before it continues its other work."""
NICENESS = 10
"""Niceness of the analyst and its subprocesses: on a small host they share cores with the ranks of timed runs, and
their answers may come later. Processes that move rows and serve pages keep their priority."""


def give_way() -> None:
    """Lowers this process's priority to NICENESS, which every user may do; never raises it."""
    os.nice(max(0, NICENESS - os.nice(0)))


class Child:
    """The process `python -m MODULE ARGUMENTS`, with `given` on its standard input and, on Linux, at most `memory`
    bytes of address space. Leaving the context kills it."""

    def __init__(self, module: str, arguments: Sequence[str], memory: int, given: bytes = b"") -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        with tempfile.TemporaryFile() as source:
            source.write(given)
            source.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                preexec_fn=_bounded(memory),
                env={**os.environ, **told_parent(), "OPENBLAS_NUM_THREADS": "1"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def lines(self) -> Iterator[bytes | None]:
        """Yields what it prints, line by line, until it closes its output; None after each TICK_S without output."""
        assert self._process.stdout is not None
        output, rest = self._process.stdout.fileno(), b""
        while True:
            if not select.select([output], [], [], TICK_S)[0]:
                yield None
                continue
            came = os.read(output, 1 << 20)
            if not came:
                return
            *whole, rest = (rest + came).split(b"\n")
            yield from whole

    def wait(self) -> int:
        """Waits until it ends; returns its exit code. To be called when its output is closed."""
        return self._process.wait()

    def last_words(self) -> str:
        """The last line that it wrote to standard error; its exit code if there is none."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit code {self._process.returncode}"


def _bounded(memory: int) -> Callable[[], None]:
    """The function that the child calls first: it makes the child die with the analyst, and limits memory and
    priority."""
    die = die_with_parent()

    def first() -> None:
        if die:
            die()
        if LINUX:  # a Mac refuses any limit below what it maps into every process by itself
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        give_way()

    return first
