from __future__ import annotations

import hashlib
import json
from typing import Any

from django.db import migrations


def tell_kernels(apps: Any, schema_editor: Any) -> None:
    """Before deterministic kernels were profiled on their own, profiles for GPU runs with them measured the usual
    kernels: their specs now say so. Those without an answer get the key of what a worker will measure."""
    profiles = apps.get_model("ledger", "Profile").objects
    asked_with = {"spec__train__device": "cuda", "spec__train__deterministic": True}
    for pk in list(profiles.filter(**asked_with).values_list("pk", flat=True)):
        profile = profiles.get(pk=pk)
        usual, exact = _keys(profile.spec)
        if profile.state == "asked" or profile.table.get("deterministic"):
            profiles.filter(pk=pk).update(key=exact)
        elif profile.table or profile.key != exact:
            train = {**profile.spec["train"], "deterministic": False}
            profiles.filter(pk=pk).update(spec={**profile.spec, "train": train}, key=usual)


def _keys(spec: dict[str, Any]) -> tuple[str, str]:
    """The keys of the profiles of this model, precision and device, for the usual kernels and the deterministic
    ones."""
    what = [spec["model"], spec["train"]["precision"], spec["train"]["device"]]
    texts = (json.dumps(parts, sort_keys=True) for parts in (what, [*what, "deterministic"]))
    usual, exact = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
    return usual, exact


class Migration(migrations.Migration):
    dependencies = [("ledger", "0014_prediction_elsewhere")]

    operations = [migrations.RunPython(tell_kernels, migrations.RunPython.noop)]
