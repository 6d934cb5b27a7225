from __future__ import annotations

from typing import Any

from django.db import migrations, models


def keep_wishes(apps: Any, schema_editor: Any) -> None:
    apps.get_model("runs", "Run").objects.filter(trace_profile=True).update(trace_how="profiler")


class Migration(migrations.Migration):
    dependencies = [("runs", "0009_names")]

    operations = [
        migrations.AddField(
            "run",
            "trace_how",
            models.CharField(
                choices=[("spans", "spans"), ("profiler", "profiler"), ("memory", "memory")],
                default="spans",
                max_length=8,
            ),
        ),
        migrations.RunPython(keep_wishes, migrations.RunPython.noop),
        migrations.RemoveField("run", "trace_profile"),
        migrations.AddField(
            "profilepart",
            "kind",
            models.CharField(
                choices=[("profile", "Profile"), ("snapshot", "Snapshot")], default="profile", max_length=8
            ),
        ),
        migrations.RemoveConstraint("profilepart", "one_piece_a_profile"),
        migrations.AddConstraint(
            "profilepart",
            models.UniqueConstraint(fields=("attempt", "kind", "step", "rank", "part"), name="one_piece_a_file"),
        ),
    ]
