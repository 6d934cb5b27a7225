from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import migrations, models

MEMBERS = "members"


def lend(apps: Any, schema_editor: Any) -> None:
    """What viewers stored before there were lent graphs is lent: else it would keep its room for ever. They had one
    graph each; somebody with several kept them as a member, and loses none."""
    graph, user = apps.get_model("ledger", "Graph"), apps.get_model(settings.AUTH_USER_MODEL)
    viewers = user.objects.filter(is_staff=False).exclude(groups__name=MEMBERS)
    owned = graph.objects.filter(owner__in=viewers.values("pk")).order_by()
    one = owned.values("owner").annotate(graphs=models.Count("pk")).filter(graphs=1)
    graph.objects.filter(owner__in=list(one.values_list("owner", flat=True))).update(lent=True)


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("ledger", "0011_long_reason"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="graph",
            name="lent",
            field=models.BooleanField(default=False),
        ),
        migrations.RunPython(lend, migrations.RunPython.noop),
    ]
