"""Updates database, static files, admin account and the workers' token, in one process before the others start."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from functools import cache

import django
from django.core.exceptions import ImproperlyConfigured

from dashboard.yard.compact import compact
from dashboard.yard.sign_in import CHECK, CHOSEN, NO_ADMIN, PREPARE_AND_CHECK, PREPARED

STATIC_STAMP = ".collected"
"""File next to the collected ones with the URL they were collected for; written when all of them are there."""
LEAST_SECRET = 20
"""Fewest characters. The token is stored as a plain hash, which is safe only for a long random secret."""
TOKEN_LIFE = timedelta(days=3650)
"""The deployment decides when to change the secret: a new WORKER_TOKEN revokes the old one at the next start."""


def prepare(password: str, worker_token: str = "") -> None:
    """Finishes the deletion of runs and migrates if there is something to migrate, gives free space of the database
    back, collects static files, makes the admin account (its password is set only then), and the token of workers on
    other hosts if there is one. Can be repeated. Raises SystemExit with what to change.
    """
    from django.core.management import call_command
    from django.db import connection

    open_database()
    refuse_other_encodings()
    refuse_newer_schema()
    finish_deletions_before_remakes()
    call_command("migrate", verbosity=0, interactive=False)
    compact(connection)
    collect_static()
    make_admin(password)
    if worker_token:
        keep_worker_token(worker_token)


def open_database() -> None:
    """Raises SystemExit with the database's own words if there is no connection to it, or its file is none."""
    from django.db import DatabaseError, connection

    try:
        connection.ensure_connection()
    except DatabaseError as error:
        raise SystemExit(f"Not started: the database cannot be opened: {error}") from None


def refuse_other_encodings() -> None:
    """Raises SystemExit if a PostgreSQL database cannot hold every character: records with others would be set aside,
    and only then would anybody notice."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database(), current_setting('server_encoding')")
        name, encoding = cursor.fetchone()
    if encoding != "UTF8":
        raise SystemExit(
            f"Not started: the database {name} has the encoding {encoding} and cannot hold every character. Make one "
            f"with UTF8: CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0."
        )


def refuse_newer_schema() -> None:
    """Raises SystemExit if a newer version has changed the schema: Django's `migrate` ignores that, and this version
    would fail to fill columns that it does not know."""
    from django.apps import apps
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(connection)
    ours = {config.label for config in apps.get_app_configs() if config.name.startswith("dashboard.")}
    known = {*loader.disk_migrations, *(old for one in loader.disk_migrations.values() for old in one.replaces)}
    newer = sorted(
        f"{app} {name}" for app, name in loader.applied_migrations if app in ours and (app, name) not in known
    )
    if newer:
        raise SystemExit(
            "Not started: a newer version of Trainyard has changed this database, and this one could not write to it "
            f"(it lacks {', '.join(newer)}). Take the newer version again, or restore the backup from before that "
            "upgrade: docs/deploy.md, Upgrade."
        )


def finish_deletions_before_remakes() -> None:
    """Deletes what is left of deleted runs if an SQLite database is to be migrated.

    A change of its table of runs makes a new table there, which may give the number of a deleted run to the next one:
    what is left of the one would belong to the other. A failure, as where a page is damaged, does not stop the start.
    """
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    from dashboard.control.tidying import finish_deletions

    if connection.vendor != "sqlite":
        return
    loader = MigrationLoader(connection)

    @cache
    def told() -> None:
        print("Deleting what is left of deleted runs, before the database is migrated …", flush=True)

    if loader.graph.nodes.keys() - loader.applied_migrations.keys() and (why := finish_deletions(connection, told)):
        print(f"Not all of what was measured of deleted runs could be deleted: {why}. The rest goes later.", flush=True)


def collect_static() -> None:
    """Collects and compresses the static files, unless those of this version are already there.

    Existing files are cleared first: collectstatic alone keeps any file that is newer than its source, and in an image
    that was built before the last start the sources are older.
    """
    from django.conf import settings
    from django.core.management import call_command

    stamp = settings.STATIC_ROOT / STATIC_STAMP
    if stamp.exists() and stamp.read_text() == settings.STATIC_URL:
        return
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
    call_command("collectstatic", verbosity=0, interactive=False, clear=True)
    stamp.write_text(settings.STATIC_URL)


def make_admin(password: str) -> None:
    """Makes the admin account in a yard without a superuser. Raises SystemExit without a password.

    So an account that was renamed, or deleted by another superuser, does not come back with its first password.
    """
    from django.contrib.auth import get_user_model
    from django.db.models import Q

    from dashboard.yard.home import ADMIN

    users = get_user_model().objects
    if users.filter(Q(is_superuser=True) | Q(username=ADMIN)).exists():
        return
    if not password:
        raise SystemExit("There is no admin account yet and no password for it: set ADMIN_PASSWORD.")
    users.create_superuser(ADMIN, password=password)


def sign_in_now(password: str) -> str:
    """How the admin signs in if not with `password`: CHOSEN, or NO_ADMIN. '' if with it, or if that cannot be asked, as
    without a database."""
    from django.contrib.auth import get_user_model
    from django.db import DatabaseError

    from dashboard.yard.home import ADMIN

    users = get_user_model().objects
    try:
        admin = users.filter(username=ADMIN, is_active=True).first()
        if admin is None:
            return NO_ADMIN if users.filter(is_superuser=True).exists() else ""
    except DatabaseError:
        return ""
    return "" if admin.check_password(password) else CHOSEN


def keep_worker_token(secret: str) -> None:
    """Makes `secret` the only token of workers that no admin made; it allows fetching corpora and nothing else."""
    from django.utils import timezone

    from dashboard.api.models import ApiToken, Scope, digest, worker_user

    if len(secret) < LEAST_SECRET:
        raise SystemExit(f"WORKER_TOKEN has {len(secret)} characters; at least {LEAST_SECRET} random ones are needed.")
    user = worker_user()
    fields = {"user": user, "made_by": "", "name": "WORKER_TOKEN", "scope": Scope.WORKER, "start": secret[:4]}
    fields["expires_at"] = timezone.now() + TOKEN_LIFE
    token, _ = ApiToken.objects.update_or_create(hashed=digest(secret), defaults=fields)
    ApiToken.objects.filter(user=user, made_by="").exclude(pk=token.pk).delete()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise SystemExit(f"Not started: {error}") from None
    given = sys.stdin.read().strip()
    asked = sys.argv[1:]
    if asked != [CHECK]:
        prepare(given, os.environ.get("WORKER_TOKEN", "").strip())
    if asked == [PREPARE_AND_CHECK]:
        print(PREPARED, flush=True)  # whoever started this goes on meanwhile
    if asked:
        print(sign_in_now(given), flush=True)
