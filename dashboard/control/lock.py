"""Only one controller works at a time. The lock ends with its holder: no timeout to wait for after a kill -9.

PostgreSQL: a session advisory lock on the controller's own connection. SQLite: flock on a file next to the database.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.db import connection

from parallel_core.file_lock import FileLock

ADVISORY_KEYS = {"controller": 0x54524E59, "analyst": 0x54524E5A}  # "TRNY" in ASCII, and the number after it


class Lock(Protocol):
    """`hold` says whether this process has the lock, and takes it if it is free; cheap enough to be called all the
    time."""

    def hold(self) -> bool: ...

    def release(self) -> None: ...


def lock_of_database(role: str = "controller") -> Lock:
    """The lock of a role (a key of ADVISORY_KEYS) for the configured database."""
    if connection.vendor == "postgresql":
        return AdvisoryLock(ADVISORY_KEYS[role])
    name = str(connection.settings_dict["NAME"])
    in_memory = "memory" in name
    return FileLock(settings.HOME / f"{role}.lock" if in_memory else Path(f"{name}.{role}.lock"))


def place_of_database() -> str:
    """Where the database is: the same for each process that uses it, another one for a copy of it elsewhere."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor != "postgresql":
        return f"{socket.gethostname()}:{name}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT has_function_privilege('pg_control_system()', 'execute')")
        server = ""
        if cursor.fetchone() == (True,):
            cursor.execute("SELECT system_identifier FROM pg_control_system()")
            server = f", server {cursor.fetchone()[0]}"
    return f"{connection.settings_dict['HOST']}:{connection.settings_dict['PORT']}/{name}{server}"


class AdvisoryLock:
    """Held by the database session: when the connection breaks the lock is lost, and `hold` notices."""

    def __init__(self, key: int = ADVISORY_KEYS["controller"]) -> None:
        self._key = key
        self._session: object | None = None

    def hold(self) -> bool:
        if self._session is not None and self._session is connection.connection:
            return True
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [self._key])
            row = cursor.fetchone()
        self._session = connection.connection if row and row[0] else None
        return self._session is not None

    def release(self) -> None:
        if self._session is not None and self._session is connection.connection:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [self._key])
        self._session = None
