"""The newest held-out loss in a run's row, as lists show and sort it; that of ended runs is in their summaries."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

BATCH = 500


def fill(apps: Any, schema_editor: Any) -> None:
    """Runs that are under way get theirs with the next evaluation."""
    model = apps.get_model("runs", "Run")
    told = model.objects.filter(summary__held_out__loss__isnull=False).values_list("pk", "summary__held_out__loss")
    model.objects.bulk_update([model(pk=pk, held_out=loss) for pk, loss in told], ["held_out"], batch_size=BATCH)


class Migration(migrations.Migration):
    dependencies = [("runs", "0025_deleted_attempts")]

    operations = [
        migrations.AddField("run", "held_out", models.FloatField(blank=True, null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
