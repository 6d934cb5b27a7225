"""How the clocks of a run's hosts differ from the broker's; not known of runs that were recorded before."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0032_based_on")]

    operations = [migrations.AddField("run", "clocks", models.JSONField(blank=True, default=dict))]
