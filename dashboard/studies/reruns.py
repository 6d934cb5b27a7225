"""Runs of a study that were disturbed, cut off from outside or cancelled, run again; and which then stands for its
setting.

Other processes' share of the devices is measured in each run, and it decides alone: of a setting the least disturbed
run stands, however fast it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.runs import services as runs
from dashboard.runs.models import ENDED, Run, State
from dashboard.studies import fit
from dashboard.studies.models import Study
from parallel_core.analysis.disturbance import DISTURBED_ABOVE


def standing(every: Iterable[Run]) -> list[Run]:
    """Runs without those that another one of their setting stands for. What has not ended stands for itself, and for
    what ended without success."""
    listed = list(every)
    best = {root: min(group, key=_rank) for root, group in _settings(listed).items()}
    under_way = _under_way(listed)
    return [
        run
        for run in listed
        if run.state not in ENDED
        or (run is best[root_of(run)] and (run.state == State.SUCCEEDED or root_of(run) not in under_way))
    ]


def stands_for(run: Run | None, every: Sequence[Run]) -> Run | None:
    """The run among `every` that stands for the setting of `run`: while it is run again, the one that has a result."""
    return min((own for own in every if run is not None and root_of(own) == root_of(run)), key=_rank, default=None)


CUT_OFF = frozenset({"killed_by_signal", "no_progress", "timed_out", "worker_lost", "interrupted"})
"""Causes that lie outside of what the run was asked to do: the same run may well end otherwise."""


def disturbed(every: Iterable[Run]) -> list[Run]:
    """Of the runs that stand: those that succeeded, disturbed, and are not being run again already."""
    return [run for run in _waiting(every) if _is_disturbed(run)]


def cut_off(every: Iterable[Run]) -> list[Run]:
    """Likewise those that something outside of them ended early."""
    return [run for run in _waiting(every) if _was_cut_off(run)]


def cancelled(every: Iterable[Run]) -> list[Run]:
    """Likewise those that somebody cancelled: a study that was stopped half way goes on with them."""
    return [run for run in _waiting(every) if run.state == State.CANCELLED]


def offer(every: Iterable[Run]) -> str:
    """What the button says: `Run the 2 disturbed and the one cut off again`; '' where nothing is to be repeated."""
    listed = list(every)
    counts = ((len(disturbed(listed)), "disturbed"), (len(cut_off(listed)), "cut off"))
    named = [_so_many(count, what) for count, what in counts if count]
    return f"Run {' and '.join(named)} again" if named else ""


def unfinished(every: Iterable[Run]) -> str:
    """What the button says that goes on with a study; '' where no run was cancelled."""
    count = len(cancelled(every))
    return f"Run {_so_many(count, 'cancelled')}" if count else ""


def _so_many(count: int, what: str) -> str:
    """`the 2 cut off`, `the disturbed one`, `the one cut off`: what of two words stands behind."""
    if count > 1:
        return f"the {count} {what}"
    return f"the one {what}" if " " in what else f"the {what} one"


def _waiting(every: Iterable[Run]) -> list[Run]:
    """Those that stand, but for settings of which a run is under way."""
    listed = list(every)
    under_way = _under_way(listed)
    return [run for run in standing(listed) if root_of(run) not in under_way]


def repeatable(every: Iterable[Run]) -> list[Run]:
    """What was disturbed or cut off."""
    return [run for run in _waiting(every) if _is_disturbed(run) or _was_cut_off(run)]


@transaction.atomic
def run_again(*, study: Study, user: Any, which: Callable[[list[Run]], list[Run]] = repeatable) -> list[Run]:
    """Queues each run of `which` once more, in its place of the study. Raises PermissionDenied."""
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may run it again.")
    if study.kind == fit.KIND:
        return []  # nothing is timed
    Study.objects.select_for_update().get(pk=study.pk)  # two that ask at once get it once
    listed = list(study.runs.order_by("position", "pk"))
    return runs.submit_all(owner=user, orders=[_again(run, study) for run in which(listed)])


def _again(run: Run, study: Study) -> runs.Order:
    return {
        "spec": run.spec,
        "name": run.name,
        "tags": run.tags,
        "study": study,
        "position": run.position,
        "exclusive": True,
        "over_hosts": run.over_hosts,
        "repeats": root_of(run),
    }


def root_of(run: Run) -> int:
    """The run that was first of its setting."""
    return run.repeats_id or run.pk


def _under_way(listed: Iterable[Run]) -> set[int]:
    """The settings of which a run has not ended."""
    return {root_of(run) for run in listed if run.state not in ENDED}


def _settings(listed: Sequence[Run]) -> dict[int, list[Run]]:
    groups: dict[int, list[Run]] = {}
    for run in listed:
        groups.setdefault(root_of(run), []).append(run)
    return groups


def _is_disturbed(run: Run) -> bool:
    return run.state == State.SUCCEEDED and (run.summary.get("cpu_others") or 0.0) > DISTURBED_ABOVE


def _was_cut_off(run: Run) -> bool:
    return run.state in (State.FAILED, State.LOST) and run.cause in CUT_OFF


def _rank(run: Run) -> tuple[int, float, int]:
    """Least first: what succeeded before what ended otherwise, then the least disturbed, then the newest."""
    others = run.summary.get("cpu_others")
    order = 0 if run.state == State.SUCCEEDED else 1 if run.state in ENDED else 2
    return order, inf if others is None else others, -run.pk
