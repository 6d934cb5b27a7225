"""What may follow `./run`: its commands, and the options of `up`. Needs Python alone, so that `./run` knows them
before the first set-up."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
LAST_PORT = 65535


def unknown(command: str) -> str:
    """What is said of a command that there is not, with the nearest ones; "" if there is that command."""
    if command in (*OWN, *OTHERS):
        return ""
    near = get_close_matches(command, [*OWN, *OTHERS], _NEAR, _LIKENESS)
    meant = f" The nearest: {', '.join(f'./run {one}' for one in near)}." if near else ""
    return f"There is no command ./run {command}.{meant} ./run help says what there is."


def wanted_port(arguments: Sequence[str]) -> int | None:
    """The port that the options of `up` name; None without any. Ends with what is wrong on stderr, and status 2."""
    parser = argparse.ArgumentParser("./run", description="Starts everything and prints the address.")
    parser.add_argument("--port", help="of the web (else TRAINYARD_PORT, else the first free one from 8000)")
    wanted = parser.parse_args(arguments).port
    try:
        return None if wanted is None else port_number(wanted)
    except ValueError as error:
        parser.error(f"--port: {error}.")


def port_number(text: str) -> int:
    """The port that `text` names, 1 to 65535. Raises ValueError otherwise."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= LAST_PORT):
        raise ValueError(f"a port is a whole number from 1 to {LAST_PORT}, not {text!r}")
    return int(text)
