"""Django's `migrate`, which gives a new SQLite database its tables at once: to apply all migrations takes seconds."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.core.management.commands import migrate
from django.db import connections

from dashboard import schema

NOT_ALL = ("app_label", "check_unapplied", "fake", "from_empty", "plan", "prune")
"""Options with which not all migrations are applied, or each is wanted."""


class Command(migrate.Command):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        help_text = "Apply each migration, also to a new SQLite database, which else gets the tables at once."
        parser.add_argument("--from-empty", action="store_true", help=help_text)

    def handle(self, *args: Any, **options: Any) -> None:
        if not any(options[name] for name in NOT_ALL):
            schema.load(connections[options["database"]])
        super().handle(*args, **options)
