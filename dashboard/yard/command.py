"""A command of manage.py as one of `./run`: `python -m dashboard.yard.command migrate`, with `Home.environment`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from django.core.exceptions import ImproperlyConfigured
from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand

from dashboard.yard.commands import unknown


class Command(ManagementUtility):
    """Speaks of `./run`, which is what was typed."""

    def __init__(self, arguments: Iterable[str]) -> None:
        super().__init__(["./run", *arguments])

    def fetch_command(self, subcommand: str) -> BaseCommand:
        if why := unknown(subcommand):
            raise SystemExit(why)
        return super().fetch_command(subcommand)


def main(arguments: list[str]) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        Command(arguments).execute()
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
