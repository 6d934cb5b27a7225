"""Workers as the controller last heard of them. Only it writes heartbeat fields; people write `draining`."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils import timezone

from workers.contract import LEASE_S


class Worker(models.Model):
    """One host with devices. `devices` is the list of workers.contract.Device of the newest heartbeat."""

    name = models.CharField(max_length=120, unique=True)
    host = models.CharField(max_length=255, blank=True)
    boot = models.CharField(max_length=64, blank=True)
    version = models.CharField(max_length=64, blank=True)
    devices = models.JSONField(default=list)
    load = models.FloatField(default=0.0)
    memory_total = models.BigIntegerField(default=0)
    memory_available = models.BigIntegerField(default=0)
    disk_free = models.BigIntegerField(null=True, blank=True)
    """Bytes left where its checkpoints go, which others may share; None while it does not say."""
    token_files = models.JSONField(default=list, blank=True)
    """{name, tokens, vocab} of the token files in its data folder."""
    shared_checkpoints = models.BooleanField(default=False)
    """Its checkpoints lie in a folder that other hosts have, too."""
    calibration = models.JSONField(default=dict, blank=True)
    draining = models.BooleanField(default=False)
    leaving = models.BooleanField(default=False)
    """Its newest heartbeat says that it ends in an orderly way; False again with the next start's first."""
    refused = models.TextField(blank=True)
    """Why the web would give it no uploaded text, in its own words: its token or its address of the web is wrong."""
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    other_boot = models.CharField(max_length=64, blank=True)
    other_host = models.CharField(max_length=255, blank=True)
    """The process that reported under this name before the present one, and its host."""
    clashed_at = models.DateTimeField(null=True, blank=True)
    """When both of them last reported in turns: two workers have one name."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def device_memory(self) -> int | None:
        """Bytes that its smallest device has; None where none says it."""
        return min(filter(None, (device.get("memory_total") for device in self.devices)), default=None)

    @property
    def clashes(self) -> bool:
        """Another worker reports under the same name, or did within two leases."""
        return self.clashed_at is not None and timezone.now() - self.clashed_at < timedelta(seconds=2 * LEASE_S)

    @property
    def in_service(self) -> bool:
        """It takes new runs, as long as it is heard of. Of two with one name each would end what the other runs."""
        return not (self.draining or self.leaving or self.clashes)


class Leftover(models.Model):
    """A deleted run of which the worker may still have checkpoints on its disk. The controller asks it to drop them
    with every heartbeat, until it has said that they are gone."""

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="leftovers")
    run = models.BigIntegerField()
    """The number that the run had."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=("worker", "run"), name="one_leftover_a_run")]
