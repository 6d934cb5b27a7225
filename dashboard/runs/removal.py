"""Deletes runs that have ended, with everything that was measured and their checkpoints on the workers' disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from dashboard import deletions
from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.fleet.models import Leftover, Worker
from dashboard.live.announce import announce
from dashboard.runs.models import ENDED, Attempt, Checkpoint, DeadLetter, Run
from dashboard.runs.services import Invalid
from dashboard.runs.standing import stands_for
from dashboard.runs.waiting.starts import keep_starts
from dashboard.studies.models import Study
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text

LEFTOVER_DAYS = 90
"""How long it is kept in mind what a worker has to delete that is no longer in the fleet."""


@dataclass(frozen=True)
class DeletionPlan:
    """Runs that somebody wants to delete: those that can be deleted, and the others with the reason why not."""

    runs: list[Run]
    staying: list[tuple[Run, str]]


def look(runs: QuerySet[Run], user: Any) -> DeletionPlan:
    """Which of these runs `user` may delete now."""
    found = list(runs.select_related("owner", "study").order_by("pk"))
    busy = in_use(found, user)
    whys = [(run, _why_not(run, user) or busy.get(run.pk, "")) for run in found]
    return DeletionPlan([run for run, why in whys if not why], [(run, why) for run, why in whys if why])


def _why_not(run: Run, user: Any) -> str:
    if not may_change(user, run):
        return f"Only its owner, {run.owner.get_username()}, and admins may delete it."
    if run.study is not None and run.study.kind == "fit":
        return "A fit study searches by its answer: delete the study as a whole."
    return ""


def in_use(runs: Sequence[Run], user: Any) -> dict[int, str]:
    """Run -> why it cannot be deleted yet, and what `user` may do about it: it has not ended, or another run is to
    resume from its checkpoint."""
    rows = Run.objects.filter(resume_run__in=runs).exclude(state__in=ENDED).exclude(pk__in=[run.pk for run in runs])
    needed = {pk: f"“{name}” goes on from its checkpoint." for pk, name in rows.values_list("resume_run_id", "name")}
    return {**needed, **{run.pk: _not_ended(run, user) for run in runs if run.state not in ENDED}}


def _not_ended(run: Run, user: Any) -> str:
    mine = may_change(user, run)
    how = "cancel it first" if mine else f"only its owner, {run.owner.get_username()}, and admins may cancel it"
    return f"It is {run.get_state_display().lower()}: {how}."


def checkpoints_sentence(runs: Sequence[Run] | QuerySet[Run]) -> str:
    """Which checkpoints on workers' disks will be deleted with the runs; '' if there are none."""
    kept = Checkpoint.objects.filter(run__in=runs)
    workers = sorted(set(kept.values_list("worker", flat=True)))
    if not workers:
        return ""
    size = bytes_text(kept.aggregate(size=Sum("bytes", default=0))["size"])
    return f"{plural_text(kept.count(), 'checkpoint')} on {listed_text(workers)} ({size}) will be deleted, too."


@again_after_deadlock
def delete(*, runs: Sequence[int], user: Any) -> int:
    """Deletes all of these runs, or none, and returns their number.

    Raises PermissionDenied if one belongs to somebody else, Invalid({"run": why}) if one cannot be deleted yet.
    """
    with transaction.atomic():
        of_runs = Run.objects.filter(pk__in=runs, study__isnull=False).values("study")
        # The studies are locked first, as by who runs one of their runs again.
        list(Study.objects.select_for_update().filter(pk__in=of_runs).order_by("pk").values("pk"))
        going = look(Run.objects.select_for_update(of=("self",)).filter(pk__in=runs), user)
        for run, why in going.staying:
            if not may_change(user, run):
                raise PermissionDenied(why)
            raise Invalid({"run": f"“{run.name}”: {why}"})
        deletions.note(user, *going.runs)
        forget(going.runs)
    return len(going.runs)


def forget(runs: Sequence[Run]) -> None:
    """Deletes the rows, inside the caller's transaction, except for what was measured: gigabytes, for which every other
    write would wait. Nobody sees that from now on, and the controller deletes it in small steps (control.tidying).

    The controller tells the workers to delete checkpoints, and drops what they still send of unknown attempts.
    """
    _leave_to_workers(runs)
    _keep_baselines(runs)
    _pass_on(runs)
    for run in runs:
        announce(run.pk, run.study_id, "state")
    going = [run.pk for run in runs]
    keep_starts(going)
    DeadLetter.objects.filter(attempt__run__in=going).delete()  # pages list them without their runs
    Attempt.objects.filter(run__in=going).update(deleted=True)
    Run.objects.filter(pk__in=going).delete()


def _keep_baselines(runs: Sequence[Run]) -> None:
    """A study whose baseline goes keeps the setting of it, where another run of that is left."""
    going = [run.pk for run in runs]
    for study in Study.objects.filter(baseline__in=going).select_related("baseline"):
        gone = study.baseline
        assert gone is not None
        left = list(study.runs.exclude(pk__in=going).defer("spec"))
        kept = stands_for(gone, left)
        Study.objects.filter(pk=study.pk).update(baseline=kept)
        instead = f"; “{kept.name}” is it now" if kept else ""
        study.events.create(kind="baseline", text=f"The baseline “{gone.name}” was deleted{instead}.")


def _pass_on(runs: Sequence[Run]) -> None:
    """Makes the oldest run that is left of a setting its first one, which the others name, where the first goes."""
    going = [run.pk for run in runs]
    left = Run.objects.filter(repeats__in=going).exclude(pk__in=going).order_by("-pk")
    for first, heir in dict(left.values_list("repeats", "pk")).items():
        Run.objects.filter(repeats=first).update(repeats=heir)
        Run.objects.filter(pk=heir).update(repeats=None)


def _leave_to_workers(runs: Sequence[Run]) -> None:
    """Notes for every worker that had ranks of a run that it may have a checkpoint of it, complete or not; also for one
    that was removed from the fleet, as it may come back within LEFTOVER_DAYS."""
    pairs = set(Checkpoint.objects.filter(run__in=runs).values_list("run_id", "worker"))
    attempts = defaultdict(list)
    for attempt in Attempt.objects.filter(run__in=runs).only("run_id", "devices"):
        attempts[attempt.run_id].append(attempt.pk)
        pairs |= {(attempt.run_id, node["worker"]) for node in attempt.devices}
    uids = dict(Run.objects.filter(pk__in=attempts).values_list("pk", "uid"))
    rows = [Leftover(run=run, worker=name, uid=uids[run], attempts=attempts[run]) for run, name in sorted(pairs)]
    Leftover.objects.bulk_create(rows, ignore_conflicts=True)
    old = Leftover.objects.filter(created_at__lt=timezone.now() - timedelta(days=LEFTOVER_DAYS))
    old.exclude(worker__in=Worker.objects.values("name")).delete()
