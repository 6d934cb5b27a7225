"""Profiles requested of workers, measurements of links, and the predictions made before runs."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.ledger.model_words import titled
from parallel_core.analysis.quantities import range_text, ratio_text, signed_percent_text
from parallel_core.profile.request import other_kernels
from parallel_core.spec import RunSpec


class ProfileState(models.TextChoices):
    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    """A recalibrated table that was taken back: it is no longer used, but what it predicted stays."""


WITHDRAWN = "Withdrawn by "
"""How the error of a profile begins that nobody wants any more."""


class Profile(models.Model):
    """The cost table of one model on one worker; of several, the newest counts. Only the controller stores answers."""

    worker = models.ForeignKey("fleet.Worker", on_delete=models.CASCADE, related_name="profiles")
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    spec = models.JSONField()
    """A RunSpec whose model, batch, precision, device and kernels are profiled."""
    key = models.CharField(max_length=64, db_index=True)
    """sha256 of model, precision, device and kernels (selectors.profile_key)."""
    state = models.CharField(max_length=8, choices=ProfileState.choices, default=ProfileState.ASKED, db_index=True)
    software = models.CharField(max_length=100, blank=True)
    table = models.JSONField(default=dict, blank=True)
    """parallel_core.profile.table.CostTable."""
    error = models.TextField(blank=True)
    """Why there is no table, or who took it back."""
    log = models.TextField(blank=True)
    """The end of the output of a failed profile."""
    base = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="recalibrated")
    """The profile that was recalibrated to make this one, if any."""
    recalibration = models.JSONField(default=dict, blank=True)
    """For a recalibrated profile: `factor` of the profiled times, the `runs` it was fitted to, and mean errors `fitted`
    and `held_out`, each as (before, after, number of runs)."""
    asked_at = models.DateTimeField(auto_now_add=True)
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        again = f", recalibrated {ratio_text(self.recalibration['factor'])}" if self.recalibration else ""
        return f"{self.title} on {self.worker}{again}"

    @property
    def owner_id(self) -> int | None:
        """Who may withdraw the request, recalibrate its table, or undo that, for `roles.may_change`."""
        return self.asked_by_id

    @property
    def withdrawn(self) -> bool:
        return self.state == ProfileState.FAILED and self.error.startswith(WITHDRAWN)

    @property
    def title(self) -> str:
        """Model, precision and kernels in a few words."""
        spec = RunSpec.stored(self.spec)
        return f"{titled(spec.model)}, {spec.train.precision}{', deterministic' if other_kernels(spec) else ''}"


class LinksBetween(models.Model):
    """Times of messages between two hosts, measured by a run over both. Of a pair and a kind of device, the newest
    counts. Only the controller writes it."""

    run = models.OneToOneField("runs.Run", null=True, on_delete=models.SET_NULL, related_name="links")
    first = models.CharField(max_length=120)
    second = models.CharField(max_length=120)
    """`first` and `second` are names of workers, in alphabetical order."""
    device = models.CharField(max_length=8)
    table = models.JSONField()
    """parallel_core.profile.curves.LinksBetween."""
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-measured_at", "-id")
        indexes = [models.Index(fields=("first", "second", "device"))]

    def __str__(self) -> str:
        return f"{self.first} and {self.second}, {self.device}"


class Prediction(models.Model):
    """What was predicted for a run before it was queued, and what was measured. `seconds` a step; bytes of the worst
    rank."""

    run = models.OneToOneField("runs.Run", on_delete=models.CASCADE, related_name="prediction")
    profile = models.ForeignKey(Profile, null=True, on_delete=models.SET_NULL)
    """The profile from which the step was simulated; None if there is no such prediction."""
    seconds = models.FloatField(null=True)
    low_seconds = models.FloatField(null=True)
    high_seconds = models.FloatField(null=True)
    """Eight of ten such runs take between the two (`ledger.ranges.Range`)."""
    earlier = models.PositiveIntegerField(null=True)
    """By the errors of how many earlier runs, 0 = by errors measured elsewhere; None where it was predicted before
    these counted: such a range is of the drift of the devices alone."""
    memory = models.BigIntegerField(null=True)
    replayed = models.ForeignKey("runs.Run", null=True, on_delete=models.SET_NULL, related_name="foresaw")
    """A run that differs only in its schedule or micro-batches; replaying it predicted `replayed_seconds`."""
    replayed_seconds = models.FloatField(null=True)
    to_replay = models.BooleanField(default=False, db_index=True)
    """Whether the analyst still has to look for such a run: replaying a long step takes too long for whoever queues the
    run."""
    measured_seconds = models.FloatField(null=True)
    measured_memory = models.BigIntegerField(null=True)
    paced_seconds = models.FloatField(null=True)
    """What the profile predicts for devices as fast as they were during the run
    (`simulate.device_drift.spells_beside`): why the host was faster or slower then could not be known before. Computed
    when the prediction is settled; `seconds` stays as predicted."""
    disturbed = models.BooleanField(default=False)
    """Whether its time is not counted: others used more than a tenth of a device, or for the reason in `left_out`."""
    hosts = models.JSONField(default=list, blank=True)
    """The worker of each rank for which it was predicted, if they are on several; [] if all are on one."""
    left_out = models.TextField(blank=True)
    """Why the time of a run that nobody disturbed is not counted, and what would make the next one count."""
    elsewhere = models.BooleanField(default=False)
    """Whether its ranks were on other hosts than predicted: then a replay's prediction does not count, either. It does
    where `left_out` only says what no profile of those hosts, or of the links between them, had measured."""
    made_at = models.DateTimeField(auto_now_add=True)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)

    @property
    def noisy(self) -> bool:
        """Whether others used its devices: then no prediction of its time counts."""
        return self.disturbed and not self.left_out

    @property
    def time_error(self) -> str:
        """`+3.1 %`: predicted over measured, less 1; '' if either is missing."""
        return signed_error(self.seconds, self.measured_seconds)

    @property
    def likely(self) -> str:
        """`95.1 ms to 120 ms`; '' if no range was known."""
        return range_text(self.low_seconds, self.high_seconds) if self.low_seconds and self.high_seconds else ""

    @property
    def likely_words(self) -> str:
        """`eight of ten such runs: 95.1 ms to 120 ms`; '' if no range was known."""
        if not self.likely or self.earlier is None:
            return f"{self.likely} as its devices drift" if self.likely else ""
        return f"eight of ten such runs: {self.likely}"

    @property
    def as_likely(self) -> bool | None:
        """Whether the measured step lay in that range; None if one of them is missing, or it is of drift alone."""
        if not (self.low_seconds and self.high_seconds and self.measured_seconds) or self.earlier is None:
            return None
        return self.low_seconds <= self.measured_seconds <= self.high_seconds

    @property
    def paced_error(self) -> str:
        return signed_error(self.paced_seconds, self.measured_seconds)

    @property
    def replay_error(self) -> str:
        return signed_error(self.replayed_seconds, self.measured_seconds)

    @property
    def memory_error(self) -> str:
        return signed_error(self.memory, self.measured_memory)


class Graph(models.Model):
    """A graph of layers that somebody sent, identified by its content: answers about it have an address."""

    sha256 = models.CharField(max_length=64, unique=True)
    """Of the text in UTF-8."""
    packed = models.BinaryField()
    """The text in UTF-8, compressed by zlib."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    lent = models.BooleanField(default=False)
    """Whether only viewers have sent it: the next graph of its owner takes its place."""

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.sha256[:12]


def signed_error(said: float | None, measured: float | None) -> str:
    return signed_percent_text(said / measured - 1) if said and measured else ""
