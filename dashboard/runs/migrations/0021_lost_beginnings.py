"""Runs that went on from a run deleted since know again after how many steps they began: their attempts tell."""

from __future__ import annotations

from typing import Any

from django.db import migrations

BATCH = 500


def find_steps(apps: Any, schema_editor: Any) -> None:
    """Earlier versions forgot the step with the run. An attempt that went on from the run's own checkpoint tells none."""
    attempts = apps.get_model("runs", "Attempt").objects.filter(
        run__resume_run=None, run__resume_step=None, begins__step__gt=0
    )
    rows = attempts.order_by("-number").values_list("run", "begins")
    steps = {run: begins["step"] for run, begins in rows if begins.get("run") != run}  # the first attempt is the last row
    model = apps.get_model("runs", "Run")
    found = [model(pk=run, resume_step=step) for run, step in steps.items()]
    model.objects.bulk_update(found, ["resume_step"], batch_size=BATCH)


class Migration(migrations.Migration):
    dependencies = [("runs", "0020_needs_memory")]

    operations = [migrations.RunPython(find_steps, migrations.RunPython.noop)]
