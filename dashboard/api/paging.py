"""Pagination of lists in the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from django.db.models import Model, QuerySet
from ninja import Query

Row = TypeVar("Row", bound=Model)
Value = TypeVar("Value")
LISTS = (400, 401, 403, 422)
"""Status codes with which an operation that lists can refuse."""
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
PerPage = Annotated[int, Query(ge=1, le=200)]


def page_of(rows: QuerySet[Row], page: int, per_page: int) -> tuple[list[Row], dict[str, Any]]:
    """Returns the rows of page `page` (counted from 1) and the `meta` of the response."""
    return list(rows[_of_page(page, per_page)]), {"count": rows.count(), "page": page, "per_page": per_page}


def part_of(values: Sequence[Value], page: int, per_page: int) -> tuple[Sequence[Value], dict[str, Any]]:
    """As `page_of`, for values that are not rows of a table."""
    return values[_of_page(page, per_page)], {"count": len(values), "page": page, "per_page": per_page}


def _of_page(page: int, per_page: int) -> slice:
    return slice((page - 1) * per_page, page * per_page)
