"""Frees most of the database that a run takes and keeps its numbers: drops the spans of its older traced steps.

What the pages of a run, its study and its verdict say without a step being asked for is read from its curves, its
newest whole traced steps and the typical one: those stay, so that all of that stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.runs import selectors
from dashboard.runs.measured import MemoryRecord, ProfilePart, SpanChunk
from dashboard.runs.models import ENDED, Run
from dashboard.runs.page.metric_rows import metered_every
from dashboard.runs.services import Invalid
from dashboard.runs.states import record
from dashboard.runs.stored import blob_bytes
from dashboard.runs.tracing.thinned import Thinned, thinned
from dashboard.runs.tracing.traced import ranks_with_spans
from parallel_core.analysis.diagnosis.run_case import STEPS
from parallel_core.analysis.quantities import plural_text

DROPPED = "The {what} were dropped to free space."


@dataclass(frozen=True)
class ThinningPlan:
    """Runs whose space somebody wants to free, and the bytes that this frees: `size` of spans and memory curves, and
    `profiles` of files of torch.profiler and snapshots. `dropped` of `traced` steps go."""

    runs: list[Run]
    size: int = 0
    profiles: int = 0
    dropped: int = 0
    traced: int = 0
    late: bool = False
    """Whether other runs have just ended."""

    @property
    def worth_it(self) -> bool:
        return bool(self.size or self.profiles)


def look(runs: QuerySet[Run], user: Any) -> ThinningPlan:
    """What can be freed now of these runs: of those that `user` may change, which have ended."""
    mine = [run for run in runs.select_related("owner").order_by("pk") if may_change(user, run) and run.state in ENDED]
    able = [run for run in mine if run.at_rest]
    found, size, profiles, dropped, traced = list[Run](), 0, 0, 0, 0
    for run in able:
        one = planned(run)
        own = sum(blob_bytes(rows, field) for rows, field in spans_going(one))
        files = blob_bytes(ProfilePart.objects.filter(attempt__run=run), "data")
        if own or files:
            found.append(run)
        size, profiles = size + own, profiles + files
        dropped, traced = dropped + one.dropped, traced + one.dropped + len(one.keep)
    return ThinningPlan(found, size, profiles, dropped, traced, late=len(able) < len(mine))


def why_not(run: Run, user: Any) -> str:
    """Why the space of a run cannot be freed by `user` now; '' if it can."""
    if not may_change(user, run):
        return f"Only its owner, {run.owner.get_username()}, and admins may free its space."
    if run.state not in ENDED:
        return f"It is {run.get_state_display().lower()}: its space can be freed when it has ended."
    return "" if run.at_rest else "It has just ended, and its last data may be on its way: try again in a minute."


def planned(run: Run) -> Thinned:
    """What would be dropped of a run, not stored. One that was thinned before loses no more steps by it."""
    if (before := thinned(run)) is not None:
        return before
    newest = SpanChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    attempt = newest.values_list("attempt_id", flat=True).first()
    keep = _kept_steps(run)
    steps = SpanChunk.objects.filter(attempt=attempt, step__lt=max(keep, default=0)).exclude(step__in=keep).order_by()
    dropped = steps.aggregate(count=Count("step", distinct=True))["count"]
    return Thinned(run=run, attempt_id=attempt, keep=keep, dropped=dropped, every=metered_every(run))


def _kept_steps(run: Run) -> list[int]:
    """The newest whole steps, as many as rules judge, and the typical one; without a whole one, the newest."""
    whole = (step for step, ranks in ranks_with_spans(run) if ranks == run.devices)
    newest = set(islice(whole, STEPS))
    others = {selectors.typical_step(run), selectors.newest_traced_step(run)}
    return sorted(newest | {step for step in others if step is not None})


def spans_going(one: Thinned) -> Iterator[tuple[QuerySet[Any], str]]:
    """The rows of spans and memory curves that are still to go, each with its large field."""
    every = SpanChunk.objects.filter(attempt__run=one.run_id)
    stays = Q(attempt=one.attempt_id) & (Q(step__in=one.keep) | Q(step__gt=max(one.keep, default=-1)))
    yield every.exclude(stays), "data"
    shown = [row.pk for row in selectors.memory(one.run).values()]
    yield MemoryRecord.objects.filter(attempt__run=one.run_id).exclude(pk__in=shown), "curve"


@again_after_deadlock
def thin(*, runs: Sequence[int], user: Any, profiles: bool = False) -> int:
    """Has the space of all of these runs freed, or of none, and returns their number; `profiles` also drops the files
    of torch.profiler and memory snapshots.

    Raises PermissionDenied if one belongs to somebody else, Invalid({"run": why}) if its space cannot be freed yet.
    """
    with transaction.atomic():
        found = list(Run.objects.select_for_update(of=("self",)).filter(pk__in=runs).order_by("pk"))
        for run in found:
            if not may_change(user, run):
                raise PermissionDenied(why_not(run, user))
            if why := why_not(run, user):
                raise Invalid({"run": f"“{run.name}”: {why}"})
        for run in found:
            keep_numbers(run, by=user, profiles=profiles)
    return len(found)


def keep_numbers(run: Run, *, by: Any, profiles: bool) -> None:
    """Notes in the caller's transaction what the controller is to drop of an ended run; `by` None: due to its age."""
    one = planned(run)
    if one.pk is None:
        one.by, one.at = by, timezone.now()
        if one.dropped:
            record(run, "thinned", DROPPED.format(what=f"spans of {plural_text(one.dropped, 'traced step')}"), actor=by)
    if profiles and not one.profiles:
        one.profiles = True
        if ProfilePart.objects.filter(attempt__run=run).exists():
            record(run, "thinned", DROPPED.format(what="files of torch.profiler and memory snapshots"), actor=by)
    one.done = False
    one.save()
