"""A moment of the database as a number: where a page adds up a thousand, it takes longer to make dates of them."""

from __future__ import annotations

from typing import Any

from django.db.models import FloatField, Func


class Epoch(Func):
    """Seconds of a moment since 1970, to the millisecond."""

    output_field = FloatField()

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:
        return super().as_sql(compiler, connection, template="((julianday(%(expressions)s) - 2440587.5) * 86400.0)")

    def as_postgresql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, tuple[Any, ...]]:
        return super().as_sql(compiler, connection, template="EXTRACT(EPOCH FROM %(expressions)s)::double precision")
