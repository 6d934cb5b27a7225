"""Temporary folders that are removed when the process that made them ends; what a killed one left is removed by the
next.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from parallel_core import processes


def fresh_folder(name: str) -> Path:
    """A new temporary folder, with the pid of this process in its name; a forked child does not remove it."""
    owner = os.getpid()
    made = Path(tempfile.mkdtemp(prefix=f"ty-{name}-{owner}-"))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


def remove_left() -> None:
    """Removes the folders of processes that ended without their exit handlers: killed ones, and mypy, which imports the
    test settings and always ends that way.
    """
    for left in Path(tempfile.gettempdir()).glob("ty-*-*-*"):
        owner = left.name.split("-")[2]
        if owner.isdecimal() and not processes.alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
