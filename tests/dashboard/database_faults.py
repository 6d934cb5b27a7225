"""Faults of the database that one row causes: real errors, of triggers, which end with the test's transaction."""

from __future__ import annotations

from typing import Any

from django.db import connection

STATES = {False: "23514", True: "57014"}
"""PostgreSQL's codes of a violated check (Django's IntegrityError) and of a cancelled statement (OperationalError)."""


def refuse(table: str, when: str, operational: bool = False) -> None:
    """From now on no row is added to `table` of which `when` (SQL about NEW) holds: that raises IntegrityError or, if
    `operational`, OperationalError."""
    postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        if postgres:
            raises = f"BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{STATES[operational]}'; END"
            cursor.execute(f"CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$")
            body = f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse_{table}()"
        else:
            connection.connection.create_function("fail", 0, _fail)
            fails = "fail()" if operational else "RAISE(ABORT, 'refused')"
            body = f"WHEN {when} BEGIN SELECT {fails}; END"
        cursor.execute(f"CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} {body}")


def mend(table: str) -> None:
    """Ends what `refuse` began."""
    on = f" ON {table}" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER refuse_{table}{on}")


def _fail() -> Any:
    """SQLite reports a function that raises as an operational error."""
    raise RuntimeError("refused")
