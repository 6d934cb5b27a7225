"""Reads the planner's small data files: facts with their sources."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "data"


@lru_cache(maxsize=16)
def table(name: str) -> dict[str, Any]:
    """The whole content of `data/<name>.json`."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def rows(name: str) -> list[dict[str, Any]]:
    """The `rows` of `data/<name>.json`."""
    found: list[dict[str, Any]] = table(name)["rows"]
    return found
