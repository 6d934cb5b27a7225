"""What the pages say of profiles that were asked for and are not there yet."""

from __future__ import annotations

from typing import Any

from dashboard.fleet.selectors import timing
from dashboard.ledger import selectors


def asked() -> dict[str, Any]:
    """`waiting` = those without an answer, `timing` = keys of those that are taken now."""
    waiting = selectors.waiting()
    return {"waiting": waiting, "timing": timing() if waiting else set()}
