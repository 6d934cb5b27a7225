from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import migrations, models

WORKER_USER = "worker-service"


def hand_over(apps: Any, schema_editor: Any) -> None:
    """Gives workers' tokens that admins made to the account of all workers. Those of an admin who was deactivated by
    then stay with that account: they are refused already, and must not begin to be taken again."""
    made = apps.get_model("api", "ApiToken").objects.filter(scope="worker", user__is_active=True)
    made = made.exclude(user__username=WORKER_USER).select_related("user")
    if not made.exists():
        return
    users = apps.get_model(*settings.AUTH_USER_MODEL.split(".")).objects
    service = users.get_or_create(username=WORKER_USER, defaults={"password": make_password(None)})[0]
    for token in made:
        token.made_by, token.user = token.user.username, service
        token.save(update_fields=["made_by", "user"])


class Migration(migrations.Migration):

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('api', '0003_scopes_in_words'),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='made_by',
            field=models.CharField(blank=True, max_length=150),
        ),
        migrations.RunPython(hand_over, migrations.RunPython.noop),
    ]
