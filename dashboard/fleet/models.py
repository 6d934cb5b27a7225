"""Workers as the controller last heard of them. Only the controller writes the fields of heartbeats; staff set
`draining`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import models

from dashboard import one_clock
from dashboard.uids import new_uid
from workers.contract import LEASE_S


class Worker(models.Model):
    """One host with devices. `devices` is a list of workers.contract.Device, from the newest heartbeat."""

    name = models.CharField(max_length=120, unique=True)
    host = models.CharField(max_length=255, blank=True)
    boot = models.CharField(max_length=64, blank=True)
    version = models.CharField(max_length=64, blank=True)
    devices = models.JSONField(default=list)
    unusable = models.JSONField(default=list, blank=True)
    """Devices that are there but cannot be used: a list of workers.contract.Unusable."""
    load = models.FloatField(default=0.0)
    memory_total = models.BigIntegerField(default=0)
    memory_available = models.BigIntegerField(default=0)
    disk_free = models.BigIntegerField(null=True, blank=True)
    """Bytes free where its checkpoints go, which others may share; None while the worker does not report it."""
    token_files = models.JSONField(default=list, blank=True)
    """{name, tokens, vocab} of each token file in its data folder, apart from those in `more_token_files`."""
    more_token_files = models.PositiveIntegerField(default=0)
    """How many others it has, whose names it does not report."""
    weights = models.JSONField(default=list, blank=True)
    """Folders of Llama weights in its data folder, those it can begin from and those with `why` it cannot
    (HeartbeatBody.weights)."""
    image_files = models.JSONField(default=list, blank=True)
    """{name, images, height, width, channels, classes} of each image file there, apart from `more_image_files`."""
    more_image_files = models.PositiveIntegerField(default=0)
    """How many others of those it has."""
    shared_checkpoints = models.BooleanField(default=False)
    """Whether its checkpoints are in a folder that other hosts also have."""
    across_hosts = models.BooleanField(default=True)
    """Whether other hosts reach it, so that it can have a part of a run over several hosts."""
    tasks = models.JSONField(default=list, blank=True)
    """What it can do instead of training (workers.contract.TASKS); [] also of a version that does not say so."""
    fields = models.JSONField(default=list, blank=True)
    """Later fields of a RunSpec that it knows (HeartbeatBody.fields)."""
    calibration = models.JSONField(default=dict, blank=True)
    draining = models.BooleanField(default=False)
    leaving = models.BooleanField(default=False)
    """Whether its newest heartbeat says that it is shutting down in an orderly way; its next start sets this to False
    again."""
    refused = models.TextField(blank=True)
    """Why the web server refused to give it an uploaded text, in the worker's words: its token or its URL is wrong."""
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    other_boot = models.CharField(max_length=64, blank=True)
    other_host = models.CharField(max_length=255, blank=True)
    """`boot` and `host` of the process that reported under this name before the present one; '' if none did."""
    clashed_at = models.DateTimeField(null=True, blank=True)
    """When the two processes last reported in alternation, i.e. two workers use one name."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def device_memory(self) -> int | None:
        """Memory of its smallest device in bytes; None if no device reports it."""
        return min(filter(None, (device.get("memory_total") for device in self.devices)), default=None)

    @property
    def data_files(self) -> dict[str, list[dict[str, Any]]]:
        """The files that a spec can name, by the word before their name in `train.corpus`."""
        return {"tokens": self.token_files, "images": self.image_files}

    def leaves_out(self, kind: str) -> bool:
        """Whether it has more files of a kind than it lists."""
        return bool({"tokens": self.more_token_files, "images": self.more_image_files}[kind])

    @property
    def heard_at(self) -> datetime | None:
        """When it was last heard by this host's clock, by which pages count ages."""
        return None if self.heartbeat_at is None else one_clock.here(self.heartbeat_at)

    @property
    def clashes(self) -> bool:
        """Whether another worker reports under the same name, or did in the last two leases (2 * LEASE_S seconds)."""
        return self.clashed_at is not None and one_clock.now() - self.clashed_at < timedelta(seconds=2 * LEASE_S)

    @property
    def in_service(self) -> bool:
        """Whether it takes new runs, as long as it sends heartbeats.

        False while two workers use the name, because each would end the runs of the other.
        """
        return not (self.draining or self.leaving or self.clashes)


class ControllerState(models.Model):
    """The one row that the controller stamps while it works (see `fleet.listening`)."""

    listened_at = models.DateTimeField()
    """When it last had read everything that workers sent."""
    failing = models.JSONField(default=list)
    """Its parts that fail (`control.guard.Guard.failing`)."""


class Yard(models.Model):
    """The one row that says which yard this is, also after it was restored from a backup (see `control.claim`)."""

    uid = models.CharField(max_length=32, default=new_uid, editable=False)
    refused = models.TextField(blank=True, editable=False)
    """Why its controller ended: the broker is another yard's. '' once it may use it again."""


class Leftover(models.Model):
    """A deleted run whose checkpoints may still be on the worker's disk.

    With heartbeats the controller asks the worker to delete them, until it has reported that they are gone.
    """

    worker = models.CharField(max_length=120)
    """Its name: it may have been removed from the fleet, and come back."""
    run = models.BigIntegerField()
    """The id that the run had."""
    uid = models.CharField(max_length=32, blank=True)
    attempts = models.JSONField(default=list)
    """Its `uid` and the ids of its attempts, by which the worker knows which checkpoints are meant."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("worker", "run"), name="one_leftover_a_run")]
