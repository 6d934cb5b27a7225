"""Workers in Django's admin: what each host has and how fresh that is; actions to drain, enable and delete them.

Devices and times are from the worker's newest heartbeat, so no field of a row can be edited.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from dashboard.accounts.admin_mixins import ReadOnlyAdmin
from dashboard.fleet import selectors, services
from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import type_of
from parallel_core.analysis.quantities import bytes_text, plural_text


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """A silent worker may be deleted; one that still sends heartbeats would be back with the next."""

    list_display = ("name", "state", "gpus", "cpus", "memory", "busy", "version", "heartbeat_at")
    fields = readonly_fields = (
        *("name", "host", "state", "each", "memory", "disk", "checkpoints", "across", "files"),
        *("images", "busy", "version", "refused", "heartbeat_at", "created_at"),
    )
    list_filter = ("draining",)
    search_fields = ("name", "host")
    actions = ("drain", "enable")

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        if not self.has_view_permission(request):
            return False
        return obj is None or not selectors.stays(obj)

    def view_on_site(self, obj: Worker) -> str:
        return reverse("fleet:list")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        reports = ExpressionWrapper(Q(heartbeat_at__gt=selectors.silent_before()), BooleanField())
        return super().get_queryset(request).annotate(reports=reports)

    @admin.display(description="state")
    def state(self, worker: Worker) -> str:
        if not worker.reports:  # type: ignore[attr-defined]  # of `get_queryset`
            return "left" if worker.leaving else "silent"
        if worker.leaving:
            return "leaving"
        if worker.clashes:
            return "name taken twice"
        return "draining" if worker.draining else "in service"

    @admin.display(description="GPUs")
    def gpus(self, worker: Worker) -> str:
        return _devices(worker, "cuda")

    @admin.display(description="CPU devices")
    def cpus(self, worker: Worker) -> str:
        return _devices(worker, "cpu")

    @admin.display(description="memory free")
    def memory(self, worker: Worker) -> str:
        return f"{bytes_text(worker.memory_available)} of {bytes_text(worker.memory_total)}"

    @admin.display(description="devices")
    def each(self, worker: Worker) -> str:
        found = [f"{device['index']}: {device.get('name', '')}{_size(device)}" for device in worker.devices]
        return format_html_join(mark_safe("<br>"), "{}", ((text,) for text in found)) or "none"

    @admin.display(description="disk free")
    def disk(self, worker: Worker) -> str:
        return "not said" if worker.disk_free is None else bytes_text(worker.disk_free)

    @admin.display(description="checkpoints")
    def checkpoints(self, worker: Worker) -> str:
        return "in a folder that other hosts have, too" if worker.shared_checkpoints else "on this host alone"

    @admin.display(description="runs over several hosts")
    def across(self, worker: Worker) -> str:
        return "takes part" if worker.across_hosts else "takes no part (TRAINYARD_ACROSS_HOSTS=0)"

    @admin.display(description="token files")
    def files(self, worker: Worker) -> str:
        found = [f"{file['name']} ({plural_text(file['tokens'], 'token')})" for file in worker.token_files]
        return _listed(found, worker.more_token_files)

    @admin.display(description="image files")
    def images(self, worker: Worker) -> str:
        found = [f"{file['name']} ({plural_text(file['images'], 'image')})" for file in worker.image_files]
        return _listed(found, worker.more_image_files)

    @admin.display(description="load", ordering="load")
    def busy(self, worker: Worker) -> str:
        return f"{worker.load:.2f}"

    @admin.action(description="Drain: start no new run there")
    def drain(self, request: HttpRequest, workers: QuerySet[Worker]) -> None:
        for worker in workers:
            services.drain(worker=worker, user=request.user)
        self.message_user(request, f"{plural_text(len(workers), 'worker')} drained; runs there finish.")

    @admin.action(description="Enable: back into service")
    def enable(self, request: HttpRequest, workers: QuerySet[Worker]) -> None:
        for worker in workers:
            services.enable(worker=worker, user=request.user)
        self.message_user(request, f"{plural_text(len(workers), 'worker')} in service.")


def _size(device: dict[str, Any]) -> str:
    return f", {bytes_text(device['memory_total'])}" if device.get("memory_total") else ""


def _devices(worker: Worker, kind: str) -> str:
    """The devices of a kind, counted by type: "2 x NVIDIA H100"."""
    counts = Counter(type_of(device) for device in worker.devices if device.get("kind") == kind)
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def _listed(found: list[str], more: int) -> str:
    """The files of a listing that leaves out `more`."""
    cut = [f"... ({len(found)} of {len(found) + more})"] if more else []
    return ", ".join([*found, *cut]) or "none"
