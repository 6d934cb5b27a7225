"""When a run first started: `started_at` is of its newest attempt."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models import Min, OuterRef, Subquery


def fill(apps: Any, schema_editor: Any) -> None:
    runs, attempts = apps.get_model("runs", "Run"), apps.get_model("runs", "Attempt")
    own = attempts.objects.filter(run=OuterRef("pk"), started_at__isnull=False).order_by().values("run")
    runs.objects.update(first_started_at=Subquery(own.annotate(first=Min("started_at")).values("first")))


class Migration(migrations.Migration):
    dependencies = [("runs", "0033_clocks")]

    operations = [
        migrations.AddField("run", "first_started_at", models.DateTimeField(blank=True, null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
