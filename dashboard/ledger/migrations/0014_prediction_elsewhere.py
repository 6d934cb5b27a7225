from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models import Q


def tell_apart(apps: Any, schema_editor: Any) -> None:
    """Of the runs that are left out, those on other hosts than predicted: only their reason tells."""
    on_one, over = (f"It was predicted {where}" for where in ("on one host", "over "))
    left_out = apps.get_model("ledger", "Prediction").objects.filter(disturbed=True)
    left_out.filter(Q(left_out__startswith=on_one) | Q(left_out__startswith=over)).update(elsewhere=True)


class Migration(migrations.Migration):
    dependencies = [("ledger", "0013_profiled_elsewhere")]

    operations = [
        migrations.AddField(
            model_name="prediction",
            name="elsewhere",
            field=models.BooleanField(default=False),
        ),
        migrations.RunPython(tell_apart, migrations.RunPython.noop),
    ]
