"""What may follow `./run`. Needs Python alone, so that `./run` itself knows before the first set-up."""

from __future__ import annotations

from difflib import get_close_matches

OWN = ("up", "password", "compact", "test", "bench", "setup", "version", "help")
"""The commands of `./run` itself."""
OTHERS = (
    *("analyst", "changepassword", "check", "clearsessions", "collectstatic", "compilemessages", "controller"),
    *("createcachetable", "createsuperuser", "dbshell", "diffsettings", "dumpdata", "findstatic", "flush", "inspectdb"),
    *("loaddata", "makemessages", "makemigrations", "migrate", "optimizemigration", "remove_stale_contenttypes"),
    *("runserver", "sendtestemail", "shell", "showmigrations", "sqlflush", "sqlmigrate", "sqlsequencereset"),
    *("squashmigrations", "startapp", "startproject", "testserver"),
)
"""Those of manage.py. Its `test` is none: `./run test` runs pytest."""
_NEAR, _LIKENESS = 3, 0.6
"""How many commands are proposed at most, and from which likeness (`difflib`'s ratio, 0 to 1)."""


def unknown(command: str) -> str:
    """What is said of a command that there is not, with the nearest ones; "" if there is that command."""
    if command in (*OWN, *OTHERS):
        return ""
    near = get_close_matches(command, [*OWN, *OTHERS], _NEAR, _LIKENESS)
    meant = f" The nearest: {', '.join(f'./run {one}' for one in near)}." if near else ""
    return f"There is no command ./run {command}.{meant} ./run help says what there is."
