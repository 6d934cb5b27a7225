"""Runs that generate text and were queued before their strategy said how they are split: all were "Generate"."""

from __future__ import annotations

from typing import Any

from django.db import migrations


def fill(apps: Any, schema_editor: Any) -> None:
    runs = apps.get_model("runs", "Run").objects
    for key, parallel in list(runs.filter(label="Generate").exclude(task={}).values_list("pk", "spec__parallel")):
        degrees = ((name, (parallel or {}).get(name.lower(), 1)) for name in ("DP", "TP", "PP"))
        split = " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "single"
        runs.filter(pk=key).update(label=f"Generate, {split}")


class Migration(migrations.Migration):
    dependencies = [("runs", "0034_first_started")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
