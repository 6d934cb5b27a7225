from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


def make_groups(using: str = "default", **kwargs: Any) -> None:
    """Creates the group `members` after a migration, so that an admin can choose it in a user's form."""
    from django.contrib.auth.models import Group

    from dashboard.accounts.roles import MEMBERS

    Group.objects.using(using).get_or_create(name=MEMBERS)


class AccountsConfig(AppConfig):
    name = "dashboard.accounts"
    label = "accounts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # post_migrate is sent once for each app; for the auth app, once the table of groups exists.
        from django.apps import apps

        post_migrate.connect(make_groups, sender=apps.get_app_config("auth"), dispatch_uid="trainyard-groups")
