"""Faults of the database that one row causes: real errors, of triggers, which end with the test's transaction."""

from __future__ import annotations

from typing import Any

from django.db import connection

STATES = {False: "23514", True: "57014"}
"""PostgreSQL's codes of a violated check (Django's IntegrityError) and of a cancelled statement (OperationalError)."""
END_CONNECTION = "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(9)"
"""A statement of PL/pgSQL that ends the connection, as a server process that dies of a row does."""


def refuse(table: str, when: str, operational: bool = False, does: str = "", on: str = "INSERT") -> None:
    """From now on no row is added to `table` of which `when` (SQL about NEW) holds: that raises IntegrityError or, if
    `operational`, OperationalError. `does` = a statement of PL/pgSQL instead, on PostgreSQL alone. `on` = DELETE: no
    row goes, and `when` is about OLD."""
    postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        if postgres:
            does = does or f"RAISE EXCEPTION 'refused' USING ERRCODE = '{STATES[operational]}'"
            made = f"FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql"
            cursor.execute(f"CREATE {made} AS $$ BEGIN {does}; RETURN NEW; END $$")
            body = f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse_{table}()"
        else:
            connection.connection.create_function("fail", 0, _fail)
            fails = "fail()" if operational else "RAISE(ABORT, 'refused')"
            body = f"WHEN {when} BEGIN SELECT {fails}; END"
        cursor.execute(f"CREATE TRIGGER refuse_{table} BEFORE {on} ON {table} {body}")


def mend(table: str) -> None:
    """Ends what `refuse` began."""
    postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER refuse_{table}{f' ON {table}' if postgres else ''}")
        if postgres:
            cursor.execute(f"DROP FUNCTION refuse_{table}")


def _fail() -> Any:
    """SQLite reports a function that raises as an operational error."""
    raise RuntimeError("refused")
