"""Which Trainyard this is: a worker says it with each heartbeat, and the dashboard compares."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


SOURCES = ("parallel_core", "workers")
"""What both sides of a yard run."""
LENGTH = 7


@cache
def version() -> str:
    """The release, and behind a plus a word that changes with any of the SOURCES, as `0.1.0+1a2b3c4`: two checkouts
    of one release are told apart. Ask early: files may change while a process has older ones loaded."""
    digest = hashlib.sha256()
    for file in sorted(path for name in SOURCES for path in (ROOT / name).rglob("*.py")):
        digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode() + file.read_bytes())
    return f"{_release()}+{digest.hexdigest()[:LENGTH]}"


def _release() -> str:
    """Of the package, also where it runs from a checkout and was never installed; else "unknown"."""
    try:
        return metadata.version("trainyard")
    except metadata.PackageNotFoundError:
        project = ROOT / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"]) if project.exists() else "unknown"
