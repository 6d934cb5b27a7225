"""Processes that a test started, and all below them: whatever happens while they are closed, none of them stays."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import psutil


def family_of(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> list[psutil.Process]:
    """Every process below this one; none where it has ended. Sessions of their own do not hide them."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def killed_after(process: subprocess.Popen[bytes] | subprocess.Popen[str] | None) -> Iterator[None]:
    """For the orderly end of a process: kills it and its family, as they were before, where that failed or left any."""
    family = family_of(process) if process else []
    try:
        yield
    finally:
        if process and process.poll() is None:
            process.kill()
            process.wait()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # it checks that the pid is still that process's
                one.kill()
