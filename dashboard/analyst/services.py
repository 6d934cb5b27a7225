"""What pages do with searches: ask, queue again after a failure, stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

import parallel_core
from dashboard.accounts.guards import MAY_NOT_SUBMIT
from dashboard.accounts.roles import may_change, may_submit
from dashboard.analyst.models import WAITING, Search, SearchState
from dashboard.live.announce import announce_search

MOST_WAITING = 100
TOO_MANY = f"{MOST_WAITING} searches wait already. Load the page again when some of them are done."
MOST_OF_ONE = 3
TOO_MANY_OF_ONE = f"{MOST_OF_ONE} searches of yours wait already. Load the page again when one of them is done."
MAY_NOT_STOP = "Only the person who asked for a search and admins may stop it."
KEPT = 500
"""How many finished searches are kept, the newest."""


def ask(kind: str, about: Mapping[str, Any], question: Callable[[], Mapping[str, Any]], *, asker: Any | None) -> Search:
    """The search for `about` (JSON, everything that determines the question), queued if it is new.

    If too many searches wait, or too many of the asker's own, returns a failed search that is not stored. `asker` is
    None for kinds with so few possible questions that nobody can crowd out others with them.
    """
    named = json.dumps([kind, about, engine()], sort_keys=True)
    key = hashlib.sha256(named.encode()).hexdigest()
    known = Search.objects.filter(key=key).defer("question").first()
    if known is not None:
        return known
    with transaction.atomic():
        if why_not := _too_many(asker):
            return Search(kind=kind, state=SearchState.FAILED, detail=why_not)
        fresh = {"kind": kind, "question": question(), "asker": asker}
        made, _ = Search.objects.get_or_create(key=key, defaults=fresh)
    _forget_old()
    return made


def _too_many(asker: Any | None) -> str:
    """Why no further search of the asker is queued; '' if one may be. Call it in the transaction that queues it."""
    waiting = Search.objects.filter(state__in=WAITING)
    if waiting.count() >= MOST_WAITING:
        return TOO_MANY
    if asker is None:
        return ""
    # Serialises an asker's requests (SQLite has a single writer); otherwise simultaneous ones could exceed the limit.
    get_user_model().objects.select_for_update().get(pk=asker.pk)
    return TOO_MANY_OF_ONE if waiting.filter(asker=asker.pk).count() >= MOST_OF_ONE else ""


@lru_cache(maxsize=1)
def engine() -> str:
    """A digest of the engine's source, so that answers of another version of the engine are not reused."""
    root = Path(parallel_core.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


def again(*, search: Search, user: Any) -> str:
    """Queues a failed search again, as the user's own; returns why not, or ''. Raises PermissionDenied for viewers."""
    _check(user)
    fresh = {"state": SearchState.QUEUED, "detail": "", "tries": 0, "done": 0, "of": 0, "ended_at": None}
    fresh["asked_at"] = timezone.now()
    with transaction.atomic():
        if why_not := _too_many(user):
            return why_not
        queued = Search.objects.filter(pk=search.pk, state=SearchState.FAILED).update(**fresh, asker=user)
    if queued:
        announce_search(search.pk)
    return ""


def stop(*, search: Search, user: Any) -> None:
    """Stops a search that waits or runs; the analyst kills its process. Raises PermissionDenied unless `may_stop`."""
    if not may_stop(search, user):
        raise PermissionDenied(MAY_NOT_STOP)
    ended = {"state": SearchState.FAILED, "detail": f"Stopped by {user.get_username()}."}
    if Search.objects.filter(pk=search.pk, state__in=WAITING).update(**ended):
        announce_search(search.pk)


def may_stop(search: Search, user: Any) -> bool:
    """Whether `user` asked for the search, be it a viewer, or may change what anybody asked."""
    return search.asker_id == user.pk or may_change(user, search)


def _check(user: Any) -> None:
    if not may_submit(user):
        raise PermissionDenied(MAY_NOT_SUBMIT)


def _forget_old() -> None:
    over = Search.objects.exclude(state__in=WAITING).order_by("-pk").values_list("pk", flat=True)
    Search.objects.filter(pk__in=list(over[KEPT:])).delete()
