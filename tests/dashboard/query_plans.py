"""How the database answers the queries of a test."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

in_words_of_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="the plan is read in SQLite's words")


def plans(asked: CaptureQueriesContext, containing: str = "SELECT") -> list[str]:
    """The plan in SQLite's words of each query that has `containing` in its text, in order."""
    with connection.cursor() as cursor:
        queries = [query["sql"] for query in asked.captured_queries if containing in query["sql"]]
        told = [cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall() for sql in queries]
    return [" ".join(row[-1] for row in rows) for rows in told]
