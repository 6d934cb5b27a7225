from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0007_generated_text")]

    operations = [
        migrations.AddField("run", "trace_asked_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("run", "trace_step", models.IntegerField(blank=True, null=True)),
        migrations.AddField("run", "trace_profile", models.BooleanField(default=False)),
    ]
