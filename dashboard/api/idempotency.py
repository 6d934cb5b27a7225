"""The header Idempotency-Key: a request that is sent again, because its answer was lost, makes nothing twice.

The key is stored in the transaction that writes what the request makes. The meaning of the header is that of the IETF
draft "The Idempotency-Key HTTP Header Field" (draft-ietf-httpapi-idempotency-key-header), section 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from ninja import Header
from ninja.files import UploadedFile

from dashboard.api.models import MOST_OF_A_KEY, IdempotencyKey
from dashboard.runs.services import Also, Invalid, nothing_else

NAME = "Idempotency-Key"
KEPT = timedelta(hours=24)
Key = Annotated[
    str | None,
    Header(
        alias=NAME,
        min_length=1,
        max_length=MOST_OF_A_KEY,
        pattern=r"^[!-~]+$",
        description="such as a UUID: the same request with the same key within 24 hours makes nothing twice, and gets "
        "200 with what the first one made",
    ),
]
Row = TypeVar("Row", bound=Model)


class Taken(Exception):
    """The key was used before, for `row`."""

    def __init__(self, row: IdempotencyKey) -> None:
        super().__init__(row.key)
        self.row = row


def made_once(
    request: HttpRequest, key: str | None, asked: bytes, among: QuerySet[Row], make: Callable[[Also], Row]
) -> tuple[int, Row]:
    """Returns (201, what `make` made), or (200, what the first request of the user with this key made).

    `asked` = what the body asks for; `among` = where a row that `make` made is found again. Raises Invalid at the
    header if the key was used for another request, or for something that has been deleted since.
    """
    if key is None:
        return 201, make(nothing_else)
    digest = hashlib.sha256(f"{request.method} {request.path}\n".encode() + asked).hexdigest()
    try:
        if found := _kept(request.user, key).first():
            raise Taken(found)
        return 201, make(partial(_keep, request.user, key, digest))
    except Taken as taken:
        row = taken.row
    if row.asked != digest:
        raise Invalid({NAME: "This key was used for another request; take a new one for each."})
    made = among.filter(pk=row.made).first()
    if made is None:
        raise Invalid({NAME: "What was made with this key has been deleted; take a new one to make it again."})
    return 200, made


def _kept(owner: Any, key: str) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.filter(owner=owner, key=key, at__gt=timezone.now() - KEPT)


def _keep(owner: Any, key: str, digest: str, made: Model) -> None:
    """Stores the key, in the transaction that made the row; of two requests at once the later one raises Taken. Deletes
    all keys that are too old."""
    IdempotencyKey.objects.filter(at__lte=timezone.now() - KEPT).delete()
    defaults = {"asked": digest, "made": made.pk}
    row, is_new = IdempotencyKey.objects.get_or_create(owner=owner, key=key, defaults=defaults)
    if not is_new:
        raise Taken(row)


def contents(name: str, files: Sequence[UploadedFile]) -> bytes:
    """What an upload asks for, in short: its name, and names and contents of its files."""
    found = hashlib.sha256(name.encode())
    for file in files:
        found.update(f"\n{file.name}\n{file.size}\n".encode())
        for chunk in file.chunks():
            found.update(chunk)
    return found.digest()
