"""Lists of the API, a page at a time."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from django.db.models import Model, QuerySet
from ninja import Query

Row = TypeVar("Row", bound=Model)
LISTS = (400, 401, 403, 422)
"""How an operation that lists can refuse."""
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
PerPage = Annotated[int, Query(ge=1, le=200)]


def page_of(rows: QuerySet[Row], page: int, per_page: int) -> tuple[list[Row], dict[str, Any]]:
    """(rows of that page, the `meta` of the answer)."""
    some = list(rows[(page - 1) * per_page : page * per_page])
    return some, {"count": rows.count(), "page": page, "per_page": per_page}
