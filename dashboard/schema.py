"""The schema of a new SQLite database: what all migrations make of an empty one, which takes them seconds.

`python -m dashboard.schema` writes `schema.sql` anew once a migration was added; until then it lacks that one, which
`migrate` applies as to any other database.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("schema.sql")


def load(database: Any) -> None:
    """Makes the tables in the database of a connection, and notes their migrations as applied, if it is an SQLite one
    that has none."""
    from django.db import transaction

    if database.vendor != "sqlite":
        return
    with transaction.atomic(using=database.alias), database.cursor() as cursor:
        if not database.introspection.table_names(cursor):
            for statement in FILE.read_text().splitlines():
                cursor.execute(statement)


def written(database: Any) -> str:
    """The statements, one a line, that make the schema of a connection's SQLite database, with the migrations that it
    notes as applied."""
    with database.cursor() as cursor:
        cursor.execute(
            # In the order in which they were made: SQLite chooses between two indexes by it.
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        )
        lines = [f"{' '.join(sql.split())};" for (sql,) in cursor.fetchall()]
        cursor.execute("SELECT app, name FROM django_migrations ORDER BY app, name")
        lines += [
            f"INSERT INTO django_migrations (app, name, applied) VALUES ('{app}', '{name}', CURRENT_TIMESTAMP);"
            for app, name in cursor.fetchall()
        ]
    return "".join(f"{line}\n" for line in lines)


def made() -> str:
    """The content of FILE as the migrations make it now. They run on the default database, which must be an empty
    one."""
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0, interactive=False, from_empty=True)
    return written(connection)


def main() -> None:
    """Writes FILE, with the database in a temporary folder as the default one."""
    import django

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TRAINYARD_HOME": folder, "DJANGO_SETTINGS_MODULE": "dashboard.settings", "DATABASE_URL": ""}
        os.environ["TRAINYARD_TESTING"] = "1"  # no secret is needed
        django.setup()
        FILE.write_text(made())


if __name__ == "__main__":
    main()
