"""What New study is sent, and its preview."""

from __future__ import annotations

from typing import Any

from django.test import Client

from dashboard.runs.form.spec_fields import from_spec
from dashboard.studies.models import Study

MATRIX: dict[str, Any] = {
    **{name: value for name, value in from_spec({}).items() if name.startswith(("model__", "train__"))},
    "kind": "matrix",
    "name": "Which is fastest?",
    "strategies": ["single", "dp", "gpipe"],
    "recompute": ["none", "full"],
    "precisions": ["fp32"],
    "micro_batches": "2, 4",
    "devices": "2",
    "timed_steps": "20",
    "repeats": "1",
    "model__layers": "2",
    "model__hidden": "32",
    "model__heads": "4",
    "model__seq": "32",
    "model__vocab": "256",
    "train__global_batch": "16",
    "train__lr": "0.001",
    "train__seed": "7",
    "train__warmup_steps": "3",
    "train__corpus": "stdlib",
    "train__device": "cpu",
}
SWEEP = {
    **{name: value for name, value in from_spec({}).items() if name.startswith(("parallel__", "trace__"))},
    **MATRIX,
    "kind": "sweep",
    "field": "train.global_batch",
    "values": "8, 16, 15",
    "parallel__dp": "2",
    "parallel__tp": "1",
    "parallel__pp": "1",
    "parallel__schedule": "1f1b",
    "parallel__micro_batches": "1",
    "parallel__recompute": "none",
    "train__precision": "fp32",
}
NEW = "/studies/new/"


def preview(client: Client, data: dict[str, Any]) -> str:
    answer = client.post(NEW, {**data, "preview": "1"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert not Study.objects.exists()
    return str(answer.content.decode())
