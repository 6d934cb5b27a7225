from __future__ import annotations

from typing import Any

from django.db import migrations


def leave_out(apps: Any, schema_editor: Any) -> None:
    """Predictions from one host's profile no longer count against steps that another host took."""
    prediction, attempt = apps.get_model("ledger", "Prediction"), apps.get_model("runs", "Attempt")
    counted = prediction.objects.filter(settled_at__isnull=False, profile__isnull=False, disturbed=False)
    for pk, run, profiled in list(counted.values_list("pk", "run", "profile__worker__name")):
        devices = attempt.objects.filter(run=run).order_by("-number").values_list("devices", flat=True).first()
        workers = sorted({str(node["worker"]) for node in devices or ()})
        if workers and profiled not in workers:
            ran = " and ".join(filter(None, (", ".join(workers[:-1]), workers[-1])))
            said = f"It was predicted from the profile of {profiled}, and ran on {ran}."
            prediction.objects.filter(pk=pk).update(disturbed=True, left_out=said, paced_seconds=None)


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0012_graph_lent"),
        ("runs", "0017_injected_host_count"),
    ]

    operations = [migrations.RunPython(leave_out, migrations.RunPython.noop)]
