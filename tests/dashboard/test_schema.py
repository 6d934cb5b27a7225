"""A new SQLite database gets the tables that all migrations make, without applying each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from dashboard import schema
from tests.dashboard.database_file import ROOT, env_of

PRINTS = """
import sys
from pathlib import Path
import django; django.setup()
from django.core.management import call_command
from django.db import connection
from dashboard import schema
schema.FILE = Path(sys.argv[1])
call_command("migrate", verbosity=0, from_empty=not schema.FILE.exists())
print(schema.written(connection), end="")
"""


def made_with(file: Path, folder: Path) -> str:
    """The schema of a new database if that file has the tables; if it is not there, as the migrations make it."""
    env = env_of(folder, f"unix://{folder}/none.sock")
    return subprocess.check_output([sys.executable, "-c", PRINTS, str(file)], cwd=ROOT, env=env, text=True)


def test_the_file_has_what_the_migrations_make(tmp_path: Path) -> None:
    assert made_with(tmp_path / "none", tmp_path) == schema.FILE.read_text(), (
        "write it anew: python -m dashboard.schema"
    )


def test_a_migration_that_the_file_lacks_is_applied(tmp_path: Path) -> None:
    lines = schema.FILE.read_text().splitlines()
    older = [line for line in lines if "webhook" not in line]
    assert len(older) < len(lines)
    (tmp_path / "older.sql").write_text("\n".join(older))
    made = made_with(tmp_path / "older.sql", tmp_path).splitlines()
    assert sorted(made) == sorted(lines)


@pytest.mark.django_db
@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="of SQLite alone")
def test_a_database_with_tables_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one that lacks some: only its migrations know what they are to do with what is there."""
    (tmp_path / "more.sql").write_text("CREATE TABLE more (id integer);\n")
    monkeypatch.setattr(schema, "FILE", tmp_path / "more.sql")
    call_command("migrate", verbosity=0)
    assert "more" not in connection.introspection.table_names()
