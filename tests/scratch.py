"""Folders of the tests' own, gone with the process that asked for them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def fresh_folder(name: str) -> Path:
    """A new one; a child that was forked since leaves it alone."""
    made, owner = Path(tempfile.mkdtemp(prefix=f"ty-{name}-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
