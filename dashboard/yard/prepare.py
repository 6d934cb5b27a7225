"""Brings the embedded database, static files and admin account up to date: one process, run before the others."""

from __future__ import annotations

import sys

import django


def prepare(password: str) -> None:
    """Idempotent: migrations, static files, and the admin account (its password is set once, when it is made)."""
    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    from dashboard.yard.home import ADMIN

    call_command("migrate", verbosity=0, interactive=False)
    call_command("collectstatic", verbosity=0, interactive=False)
    users = get_user_model().objects
    if not users.filter(username=ADMIN).exists():
        users.create_superuser(ADMIN, password=password)


if __name__ == "__main__":
    prepare(sys.stdin.read().strip())
