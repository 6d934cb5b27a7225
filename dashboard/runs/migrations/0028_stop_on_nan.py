"""Runs made before there was `train.stop_on_nan` trained as with it off, and do so when they are run again."""

from __future__ import annotations

from typing import Any

from django.db import migrations

BATCH = 500


def fill(apps: Any, schema_editor: Any) -> None:
    model = apps.get_model("runs", "Run")
    lacking = model.objects.filter(spec__has_key="train").exclude(spec__train__has_key="stop_on_nan")
    ids = list(lacking.values_list("pk", flat=True))
    for first in range(0, len(ids), BATCH):
        rows = list(model.objects.filter(pk__in=ids[first : first + BATCH]).only("spec"))
        for row in rows:
            row.spec = {**row.spec, "train": {**row.spec["train"], "stop_on_nan": False}}
        model.objects.bulk_update(rows, ["spec"])


class Migration(migrations.Migration):
    dependencies = [("runs", "0027_run_notes")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
