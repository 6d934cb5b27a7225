"""API operations on workers."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api import schemas as s
from dashboard.api.auth import READ
from dashboard.fleet import worker_views as fleet

router = Router(tags=["fleet"])


class DeviceOut(Schema):
    index: int
    kind: str
    name: str
    memory_total: int
    memory_used: int
    load: float
    run: int | None


class WorkerOut(Schema):
    name: str
    host: str
    version: str
    draining: bool
    leaving: bool
    silent: bool
    heartbeat_age_s: float | None
    load: float
    memory_total: int
    memory_available: int
    disk_free: int | None = Field(description="bytes left where its checkpoints go")
    across_hosts: bool = Field(description="whether it takes part in runs over several hosts")
    tasks: list[str] = Field(description="what it can do instead of training: generate, links")
    devices: list[DeviceOut]
    runs: list[int]


@router.get("", auth=READ, response={200: s.Envelope[list[WorkerOut]], **s.refusals(401, 403)})
def workers(request: HttpRequest) -> Any:
    """All workers with their devices and the runs on them."""
    return {"data": [_worker(view) for view in fleet.workers()]}


def _worker(view: fleet.WorkerView) -> dict[str, Any]:
    worker = view.worker
    about = ("name", "host", "version", "draining", "leaving", "across_hosts", "tasks")
    names = (*about, "load", "memory_total", "memory_available", "disk_free")
    fields = [name for name in DeviceOut.model_fields if name != "run"]
    devices = [
        {**{f: getattr(device, f) for f in fields}, "run": device.run.pk if device.run else None}
        for device in view.devices
    ]
    return {
        **{name: getattr(worker, name) for name in names},
        "silent": view.silent,
        "heartbeat_age_s": view.age,
        "devices": devices,
        "runs": [run.pk for run in view.runs],
    }
