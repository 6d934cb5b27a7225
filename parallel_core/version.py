"""The version of this Trainyard: workers report it with each heartbeat, and the dashboard compares it with its own."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


SOURCES = ("parallel_core", "workers")
"""The packages that both dashboard and workers run."""
LENGTH = 7


@cache
def version() -> str:
    """Returns the release with a hash of the SOURCES, such as `0.1.0+1a2b3c4`, to distinguish two checkouts of one
    release.

    Call it early: files may change while a process still runs older code.
    """
    digest = hashlib.sha256()
    for file in sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.py")):
        digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode() + file.read_bytes())
    return f"{_release()}+{digest.hexdigest()[:LENGTH]}"


def _release() -> str:
    """Returns the version that the checkout's pyproject.toml says; "unknown" without that file."""
    project = ROOT / "pyproject.toml"
    return str(tomllib.loads(project.read_text())["tool"]["trainyard"]["version"]) if project.exists() else "unknown"
