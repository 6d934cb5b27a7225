"""Temporary folders that are removed when the process that made them ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def fresh_folder(name: str) -> Path:
    """A new temporary folder; a forked child does not remove it."""
    made, owner = Path(tempfile.mkdtemp(prefix=f"ty-{name}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
