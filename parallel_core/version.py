"""Which Trainyard this is: a worker says it with each heartbeat, and the dashboard compares."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@cache
def version() -> str:
    """Version of the package, also where it runs from a checkout and was never installed; else "unknown"."""
    try:
        return metadata.version("trainyard")
    except metadata.PackageNotFoundError:
        project = ROOT / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"]) if project.exists() else "unknown"
