"""What a page does with a search: ask it, ask it once more, stop it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.core.exceptions import PermissionDenied

import parallel_core
from dashboard.accounts.guards import MAY_NOT_SUBMIT
from dashboard.accounts.roles import may_submit
from dashboard.analyst.models import WAITING, Search, SearchState
from dashboard.live.announce import announce_search

MOST_WAITING = 100
TOO_MANY = f"{MOST_WAITING} searches wait already. Load the page again when some of them are done."
KEPT = 500
"""Searches that are over and still known, the newest."""


def ask(kind: str, about: Mapping[str, Any], question: Callable[[], Mapping[str, Any]]) -> Search:
    """The search for `about` (JSON, all that the question follows from), queued if it is new.

    Where too many wait already, one that failed and is kept nowhere.
    """
    named = json.dumps([kind, about, engine()], sort_keys=True)
    key = hashlib.sha256(named.encode()).hexdigest()
    known = Search.objects.filter(key=key).defer("question").first()
    if known is not None:
        return known
    if Search.objects.filter(state__in=WAITING).count() >= MOST_WAITING:
        return Search(kind=kind, state=SearchState.FAILED, detail=TOO_MANY)
    made, _ = Search.objects.get_or_create(key=key, defaults={"kind": kind, "question": question()})
    _forget_old()
    return made


@lru_cache(maxsize=1)
def engine() -> str:
    """A digest of the engine's source: answers of another engine are not taken for its own."""
    root = Path(parallel_core.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def again(*, search: Search, user: Any) -> None:
    """Queues one that failed. Raises PermissionDenied for viewers."""
    _check(user)
    fresh = {"state": SearchState.QUEUED, "detail": "", "tries": 0, "done": 0, "of": 0, "ended_at": None}
    if Search.objects.filter(pk=search.pk, state=SearchState.FAILED).update(**fresh):
        announce_search(search.pk)


def stop(*, search: Search, user: Any) -> None:
    """Ends one that waits or runs; the analyst kills its process. Raises PermissionDenied for viewers."""
    _check(user)
    ended = {"state": SearchState.FAILED, "detail": f"Stopped by {user.get_username()}."}
    if Search.objects.filter(pk=search.pk, state__in=WAITING).update(**ended):
        announce_search(search.pk)


def _check(user: Any) -> None:
    if not may_submit(user):
        raise PermissionDenied(MAY_NOT_SUBMIT)


def _forget_old() -> None:
    over = Search.objects.exclude(state__in=WAITING).order_by("-pk").values_list("pk", flat=True)
    Search.objects.filter(pk__in=list(over[KEPT:])).delete()
