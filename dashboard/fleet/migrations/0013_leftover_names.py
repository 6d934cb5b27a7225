"""Leftovers are kept by the name of their worker, which may be removed from the fleet and come back."""

from typing import Any

import django.utils.timezone
from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def name_workers(apps: Any, schema_editor: Any) -> None:
    workers = apps.get_model("fleet", "Worker").objects.filter(pk=OuterRef("worker_id"))
    apps.get_model("fleet", "Leftover").objects.update(name=Subquery(workers.values("name")))


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_unusable")]

    operations = [
        migrations.AddField("leftover", "name", models.CharField(default="", max_length=120), preserve_default=False),
        migrations.RunPython(name_workers, migrations.RunPython.noop),
        migrations.RemoveConstraint("leftover", "one_leftover_a_run"),
        migrations.RemoveField("leftover", "worker"),
        migrations.RenameField("leftover", "name", "worker"),
        migrations.AddConstraint(
            "leftover", models.UniqueConstraint(fields=("worker", "run"), name="one_leftover_a_run")
        ),
        migrations.AddField(
            "leftover",
            "created_at",
            models.DateTimeField(auto_now_add=True, default=django.utils.timezone.now),
            preserve_default=False,
        ),
    ]
