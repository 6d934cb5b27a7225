"""Graphs of layers that people sent, stored by the hash of their content, so that answers about one have an address."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from django.db import transaction

from dashboard.ledger.models import Graph

MOST_KEPT = 200
"""The most graphs that are kept; the oldest are deleted first."""


def keep(text: str, owner: Any) -> Graph:
    """Stores the graph with that text and returns it; the same text is stored only once. One that a viewer was lent
    room for is `owner`'s from now on."""
    with transaction.atomic():
        kept, made = _stored(text, owner)
        if made:
            listed = Graph.objects.order_by("-id").values_list("id", flat=True)
            Graph.objects.filter(id__in=list(listed[MOST_KEPT : 2 * MOST_KEPT])).delete()
        elif kept.lent:
            kept.owner, kept.lent = owner, False
            kept.save(update_fields=("owner", "lent"))
    return kept


def lend(text: str, viewer: Any) -> Graph | None:
    """Stores a graph for a viewer, who may not displace what others stored; None if there is no room.

    Of the graphs that a viewer was lent room for, only the newest is kept.
    """
    with transaction.atomic():
        Graph.objects.filter(owner=viewer, lent=True).exclude(sha256=digest(text)).delete()
        known = Graph.objects.filter(sha256=digest(text)).first()
        if known is None and Graph.objects.count() >= MOST_KEPT:
            return None
        return known or _stored(text, viewer, lent=True)[0]


def _stored(text: str, owner: Any, *, lent: bool = False) -> tuple[Graph, bool]:
    """The graph with that text, and whether it is new."""
    given = {"packed": zlib.compress(_data(text)), "owner": owner, "lent": lent}
    return Graph.objects.get_or_create(sha256=digest(text), defaults=given)


def digest(text: str) -> str:
    """The hash by which the graph with that text is stored."""
    return hashlib.sha256(_data(text)).hexdigest()


def _data(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def text_of(sha256: str) -> str | None:
    """The text of a stored graph; None if there is none."""
    packed = Graph.objects.filter(sha256=sha256).values_list("packed", flat=True).first()
    return None if packed is None else zlib.decompress(bytes(packed)).decode()
