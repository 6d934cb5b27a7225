"""What an attempt sent back: series, logs, spans, memory and profiles. Written only by `dashboard.control`."""

from __future__ import annotations

from django.db import models


class Cursor(models.Model):
    """How many bytes of a file of an attempt's rank have arrived; moves in the transaction that stores them."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="cursors")
    rank = models.IntegerField()
    channel = models.CharField(max_length=8)
    offset = models.BigIntegerField(default=0)
    failures = models.PositiveSmallIntegerField(default=0)
    """How often what follows `offset` could not be stored."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=("attempt", "rank", "channel"), name="one_cursor_a_file")]


class DeadLetter(models.Model):
    """Bytes [start, end) of a file of an attempt's rank that could not be stored, and the first line of the error: one
    record of the events, or a batch of the log (control.dead_letters)."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="dead_letters")
    rank = models.IntegerField()
    channel = models.CharField(max_length=8)
    start = models.BigIntegerField()
    end = models.BigIntegerField()
    error = models.CharField(max_length=400)
    """Of the last try to store it."""
    at = models.DateTimeField(auto_now_add=True)
    """When it was set aside."""
    data = models.BinaryField()
    store_asked_at = models.DateTimeField(null=True, blank=True)
    """When an admin asked to store it again, until the controller tries to."""
    tried_at = models.DateTimeField(null=True, blank=True)
    """When that was tried last."""

    class Meta:
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=("attempt", "rank", "channel", "start"), name="one_dead_letter_a_record")
        ]
        # Found without a look at the rows, which are large.
        indexes = [
            models.Index(
                fields=("store_asked_at",),
                name="dead_letters_asked_for",
                condition=models.Q(store_asked_at__isnull=False),
            )
        ]


class SeriesChunk(models.Model):
    """Up to 500 points of one series of one rank (dtype records.POINT), ordered by step. Full chunks are closed."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="chunks")
    rank = models.IntegerField()
    name = models.CharField(max_length=60)
    first_step = models.IntegerField()
    last_step = models.IntegerField()
    count = models.IntegerField()
    closed = models.BooleanField(default=False)
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "rank", "name", "id")
        indexes = [
            models.Index(fields=("attempt", "name", "rank", "first_step")),
            # What the next points are added to, found without a look at the full chunks.
            models.Index(
                fields=("attempt", "name", "rank"), name="open_series_chunks", condition=models.Q(closed=False)
            ),
        ]


class LogChunk(models.Model):
    """Bytes [start, end) of a rank's log."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="logs")
    rank = models.IntegerField()
    start = models.BigIntegerField()
    end = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "rank", "start")
        indexes = [models.Index(fields=("attempt", "rank", "start"))]


class SpanChunk(models.Model):
    """The spans of one rank in one traced step (dtype records.SPAN): `count` of the `total` rows that it recorded; 0 of
    them if its worker dropped them before the yard had stored them (parallel_core.observe.spool)."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="spans")
    rank = models.IntegerField()
    step = models.IntegerField()
    count = models.IntegerField()
    total = models.IntegerField()
    clock_within = models.BigIntegerField(null=True)
    """Error bound in ns of its times against those of rank 0; None on the host of rank 0, and if there is only one
    host."""
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "step", "rank")
        constraints = [models.UniqueConstraint(fields=("attempt", "step", "rank"), name="one_chunk_a_traced_step")]
        # Found without a look at the rows of all steps, which are large.
        indexes = [models.Index(fields=("attempt", "step"), name="dropped_spans", condition=models.Q(count=0))]


class OpenWaits(models.Model):
    """Steps of one rank whose `waits` records have not arrived from all ranks yet (analysis.step_waits.StepWaits).

    A rank's rows are in step order. What arrives joins the newest ones, so that they stay few (control.step_shares).
    """

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="open_waits")
    rank = models.IntegerField()
    first_step = models.IntegerField(default=0)
    last_step = models.IntegerField(default=0)
    steps = models.IntegerField()
    size = models.IntegerField(default=0)
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "rank", "id")


class MemoryRecord(models.Model):
    """The metered step of one rank: the header of its `memory` frame, and the curve (dtype records.MEMORY)."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="memory")
    rank = models.IntegerField()
    step = models.IntegerField()
    peak_total = models.BigIntegerField()
    peak = models.JSONField(default=dict)
    final = models.JSONField(default=dict)
    rss_delta = models.BigIntegerField(default=0)
    curve = models.BinaryField(default=bytes)

    class Meta:
        ordering = ("attempt", "rank", "step")
        constraints = [models.UniqueConstraint(fields=("attempt", "step", "rank"), name="one_memory_a_step")]


class ProfilePart(models.Model):
    """Piece `part` of `of` of a file about a rank's step (`size` bytes); `of` = 0: it was too large to be kept.

    The file is a trace of torch.profiler (gzipped Chrome trace), or a snapshot of the CUDA allocator's history
    (parallel_core.observe.snapshot).
    """

    class Kind(models.TextChoices):
        PROFILE = "profile"
        SNAPSHOT = "snapshot"

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="profiles")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.PROFILE)
    rank = models.IntegerField()
    step = models.IntegerField()
    part = models.IntegerField()
    of = models.IntegerField()
    size = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "step", "rank", "part")
        constraints = [
            models.UniqueConstraint(fields=("attempt", "kind", "step", "rank", "part"), name="one_piece_a_file")
        ]


class RankInfo(models.Model):
    """The `hello` and `summary` frames of a rank, and the sum of its `generated` frames (analysis.generated)."""

    attempt = models.ForeignKey("runs.Attempt", on_delete=models.CASCADE, related_name="ranks")
    rank = models.IntegerField()
    hello = models.JSONField(default=dict)
    summary = models.JSONField(default=dict)
    phase = models.CharField(max_length=16, blank=True)
    generated = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("attempt", "rank")
        constraints = [models.UniqueConstraint(fields=("attempt", "rank"), name="one_info_a_rank")]
