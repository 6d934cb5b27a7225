"""That most of what was traced of a run is dropped, and what of it stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models

if TYPE_CHECKING:
    from dashboard.runs.models import Run


class Thinned(models.Model):
    """The spans of a run's older traced steps are dropped: asked for by a person (runs.tracing.thinning) or due to its
    age, and done in small steps by the controller (control.thinning).

    Of the attempt whose spans pages show, the steps in `keep` stay, and those behind the last of them.
    """

    run = models.OneToOneField("runs.Run", on_delete=models.CASCADE, related_name="thinned")
    attempt = models.ForeignKey("runs.Attempt", null=True, on_delete=models.CASCADE)
    """None if no step was traced."""
    keep = models.JSONField(default=list)
    """Steps, ascending."""
    dropped = models.IntegerField(default=0)
    """How many traced steps of that attempt do not stay."""
    every = models.IntegerField(default=1)
    """Shares were measured in one of so many steps, as its traced steps told (runs.page.metric_rows.metered_every)."""
    profiles = models.BooleanField(default=False)
    """Whether the files of torch.profiler and memory snapshots are dropped, too."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    """None: due to its age."""
    at = models.DateTimeField()
    done = models.BooleanField(default=False)

    class Meta:
        # What is still to be done is found without a look at what was done.
        indexes = [models.Index(fields=("id",), name="thinned_not_done", condition=models.Q(done=False))]

    def __str__(self) -> str:
        return f"thinned run {self.run_id}"

    @property
    def by_text(self) -> str:
        """Who dropped them, or why: `by alice`."""
        return f"by {self.by.get_username()}" if self.by else "due to their age"


def thinned(run: Run) -> Thinned | None:
    """The record of a run that was thinned."""
    return Thinned.objects.filter(run=run).select_related("by").first()
