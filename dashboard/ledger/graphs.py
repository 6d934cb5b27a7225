"""Graphs of layers that people sent: kept by their content, so that an answer about one can be shared."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from django.db import transaction

from dashboard.ledger.models import Graph

MOST_KEPT = 200
"""Graphs; the oldest go first."""


def keep(text: str, owner: Any) -> Graph:
    """The graph of that text; the same text twice is one graph."""
    given = {"packed": zlib.compress(_data(text)), "owner": owner}
    with transaction.atomic():
        kept, made = Graph.objects.get_or_create(sha256=digest(text), defaults=given)
        if made:
            listed = Graph.objects.order_by("-id").values_list("id", flat=True)
            Graph.objects.filter(id__in=list(listed[MOST_KEPT : 2 * MOST_KEPT])).delete()
    return kept


def lend(text: str, viewer: Any) -> Graph | None:
    """The same for somebody who may change nothing of others: of theirs one graph is kept, the newest. None where that
    would need the room of another one's."""
    with transaction.atomic():
        Graph.objects.filter(owner=viewer).exclude(sha256=digest(text)).delete()
        known = Graph.objects.filter(sha256=digest(text)).first()
        if known is None and Graph.objects.count() >= MOST_KEPT:
            return None
        return known or keep(text, viewer)


def digest(text: str) -> str:
    """By which the graph of that text is known."""
    return hashlib.sha256(_data(text)).hexdigest()


def _data(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def text_of(sha256: str) -> str | None:
    """None where no such graph is kept."""
    packed = Graph.objects.filter(sha256=sha256).values_list("packed", flat=True).first()
    return None if packed is None else zlib.decompress(bytes(packed)).decode()
