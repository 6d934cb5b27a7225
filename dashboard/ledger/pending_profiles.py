"""Template context about profiles that were requested and are not there yet."""

from __future__ import annotations

from typing import Any

from dashboard.fleet.selectors import timing
from dashboard.ledger import selectors


def asked() -> dict[str, Any]:
    """`waiting` = requested profiles without an answer, `timing` = ids of those that a worker is working on now."""
    waiting = selectors.waiting()
    return {"waiting": waiting, "timing": timing() if waiting else set()}
