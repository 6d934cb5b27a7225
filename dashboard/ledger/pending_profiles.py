"""Template context about profiles that were requested and are not there yet."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.roles import may_change
from dashboard.fleet.worker_views import timing
from dashboard.ledger import selectors


def asked(user: Any) -> dict[str, Any]:
    """`waiting` = requested profiles without an answer, `timing` = ids of those that a worker is working on now,
    `withdrawable` = ids of those that `user` may withdraw."""
    waiting = selectors.waiting()
    mine = {one.pk for one in waiting if may_change(user, one)}
    return {"waiting": waiting, "timing": timing() if waiting else set(), "withdrawable": mine}
