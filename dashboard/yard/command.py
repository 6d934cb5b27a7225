"""A command of manage.py as one of `./run`: `python -m dashboard.yard.command migrate`, with `Home.environment`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches

from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility, get_commands
from django.core.management.base import BaseCommand

OWN = ("up", "password", "compact", "test", "bench", "setup", "help")
"""The commands of `./run` itself."""
_NEAR, _LIKENESS = 3, 0.6
"""How many commands are proposed at most, and from which likeness (`difflib`'s ratio, 0 to 1)."""


class Command(ManagementUtility):
    """Speaks of `./run`, which is what was typed."""

    def __init__(self, arguments: Iterable[str]) -> None:
        super().__init__(["./run", *arguments])

    def fetch_command(self, subcommand: str) -> BaseCommand:
        if subcommand not in get_commands():
            raise SystemExit(unknown(subcommand))
        return super().fetch_command(subcommand)


def unknown(command: str) -> str:
    """What is said of a command that there is not, with the nearest ones."""
    near = get_close_matches(command, [*OWN, *get_commands()], _NEAR, _LIKENESS)
    meant = f" The nearest: {', '.join(f'./run {one}' for one in near)}." if near else ""
    return f"There is no command ./run {command}.{meant} ./run help says what there is."


def main(arguments: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        Command(arguments).execute()
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
