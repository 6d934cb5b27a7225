"""Runs of a study that are run again because they were disturbed, cut off from outside or cancelled. Which run of a
setting then represents it is in `dashboard.runs.standing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.fleet.listening import away_sentence
from dashboard.fleet.run_on import RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import services as runs
from dashboard.runs.models import Run, State
from dashboard.runs.standing import root_of, standing, under_way_of
from dashboard.runs.states import retries_at_first
from dashboard.runs.texts.corpus_checks import corpus_errors
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting.fleet_checks import FleetCheck, fleet_check
from dashboard.runs.weights import weights_errors
from dashboard.studies.fitting import fit
from dashboard.studies.models import Study
from dashboard.studies.overview.labels import numbered
from parallel_core.analysis.disturbance import is_quiet
from parallel_core.analysis.quantities import listed_text, plural_text
from parallel_core.spec import RunSpec
from workers.contract import task_of

CUT_OFF = frozenset({"killed_by_signal", "no_progress", "timed_out", "worker_lost", "interrupted"})
"""Causes outside of what the run was asked to do: the same run may well end otherwise."""

NAMED = 8
"""How many runs are named that have one reason in common."""


def disturbed(every: Iterable[Run]) -> list[Run]:
    """The runs that represent their setting, succeeded, were disturbed (see `is_quiet`) though they were to have their
    host to themselves, and are not being run again already."""
    return [run for run in _waiting(every) if _is_disturbed(run)]


def cut_off(every: Iterable[Run]) -> list[Run]:
    """In the same way, those that something outside ended early."""
    return [run for run in _waiting(every) if _was_cut_off(run)]


def cancelled(every: Iterable[Run]) -> list[Run]:
    """In the same way, those that somebody cancelled: with them, a study that was stopped half way can go on."""
    return [run for run in _waiting(every) if run.state == State.CANCELLED]


def offer(every: Iterable[Run]) -> str:
    """The text of the button: `Run the 2 disturbed and the one cut off again`; '' if there is nothing that can be
    repeated."""
    listed = list(every)
    counts = ((_possible(disturbed(listed)), "disturbed"), (_possible(cut_off(listed)), "cut off"))
    named = [_so_many(count, what) for count, what in counts if count]
    return f"Run {' and '.join(named)} again" if named else ""


def unfinished(every: Iterable[Run]) -> str:
    """The text of the button that goes on with a study; '' if no run was cancelled that can be repeated."""
    count = _possible(cancelled(every))
    return f"Run {_so_many(count, 'cancelled')}" if count else ""


def _possible(found: Iterable[Run]) -> int:
    """How many of the runs can be run again, as what they began from was not deleted."""
    return sum(not _is_orphan(run) for run in found)


def _is_orphan(run: Run) -> bool:
    """Whether the run from whose checkpoint it began was deleted."""
    return run.resume_run_id is None and bool(run.resume_step or run.generates)


def _so_many(count: int, what: str) -> str:
    """`the 2 cut off`, `the disturbed one`, `the one cut off`: two words follow their noun."""
    if count > 1:
        return f"the {count} {what}"
    return f"the one {what}" if " " in what else f"the {what} one"


def _waiting(every: Iterable[Run]) -> list[Run]:
    """The runs that represent their setting, without settings that have a run under way."""
    listed = list(every)
    under_way = under_way_of(listed)
    return [run for run in standing(listed) if root_of(run) not in under_way]


def repeatable(every: Iterable[Run]) -> list[Run]:
    """The runs that were disturbed or cut off."""
    return [run for run in _waiting(every) if _is_disturbed(run) or _was_cut_off(run)]


WHICH: Mapping[str, Callable[[Iterable[Run]], list[Run]]] = {"repeatable": repeatable, "cancelled": cancelled}
"""Which runs of a study can be run again, by the name that requests use."""


@again_after_deadlock
def run_again(
    *,
    study: Study,
    user: Any,
    which: Callable[[list[Run]], list[Run]] = repeatable,
    refused: dict[int, str] | None = None,
) -> list[Run]:
    """Queues each run in `which` once more, at its position in the study.

    Leaves out those that are refused today, such as for a checkpoint that is gone or because no worker that reports
    could take them; `refused` gets why, by run. Those for which only the predicted memory is too much today are queued
    and wait (`waits`). The searches of a fit study then go on. Raises PermissionDenied.
    """
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may run it again.")
    why, fleet = {} if refused is None else refused, FleetSnapshot.now()
    why.clear()  # of a try that ended in a deadlock
    while wanted := which(_listed(study)):
        requests = [_again(run, study) for run in wanted if not _is_refused(run, study, user, fleet, why)]
        prepared = runs.prepare(owner=user, requests=requests)
        # What the runs begin from may go until they are written: then they are looked at once more.
        with suppress(runs.Gone), transaction.atomic():
            # Of two requests at once only one queues the runs; and what the runs refer to may have been deleted.
            locked = Study.locked(study.pk)
            if locked is None:
                return []
            if _references(which(_listed(study))) == _references(wanted):
                return _queue(locked, prepared, user)
        why.clear()
    return []


def _queue(study: Study, prepared: runs.Prepared, user: Any) -> list[Run]:
    """Queues the runs of a study that is locked, inside the caller's transaction, and lets a fit study search on."""
    if prepared.runs and study.kind == fit.KIND:
        fit.search_on(study)
    queueing.follow(study, prepared.runs, user)
    written = runs.write(prepared)
    if written:
        text = f"{user.get_username()} ran {plural_text(len(written), 'run')} again."
        study.events.create(kind="again", text=text, actor=user)
    return written


def _listed(study: Study) -> list[Run]:
    return candidates(study, study.runs.order_by("position", "pk"))


def candidates(study: Study, every: Iterable[Run]) -> list[Run]:
    """The runs of the study that can be run again at all: all of them, but of a fit study, in which nothing is timed,
    those that ended its searches without an answer."""
    return fit.stopped(every) if study.kind == fit.KIND else list(every)


def _references(listed: Iterable[Run]) -> list[tuple[int | None, ...]]:
    """The runs and the rows that their orders refer to."""
    return [(run.pk, run.repeats_id, run.resume_run_id, run.resume_step) for run in listed]


def waits(queued: Iterable[Run]) -> dict[int, str]:
    """Why the queued runs that would wait even if nothing else ran do so, as sentences by run: no worker takes them
    now, such as for their predicted memory, or the controller is away."""
    fleet = FleetSnapshot.now()
    found = {run.pk: _fleet_check(run, fleet, run.chosen_devices).waits for run in queued}
    return {pk: said for pk, said in found.items() if said}


def by_name(found: Mapping[int, str]) -> dict[str, str]:
    """The sentences on runs by their names, with the run's number where several have one name."""
    names = numbered(dict(Run.objects.filter(pk__in=found).order_by("position", "pk").values_list("pk", "name")))
    return {name: found[pk] for pk, name in names.items()}


def waiting_text(found: Mapping[str, str]) -> str:
    """That runs wait, in words: the sentences of `found` by name; '' without any. While the controller is away that is
    all there is to say, of every run."""
    return away_sentence() or (f"No worker takes them now. {by_reason(found)}" if found else "")


def by_reason(found: Mapping[str, str]) -> str:
    """`“DP” and “TP”: why.`: each reason once, after the first NAMED of its runs."""
    reasons: dict[str, list[str]] = {}
    for name, why in found.items():
        reasons.setdefault(why, []).append(f"“{name}”")
    return " ".join(f"{_named(names)}: {why}" for why, names in reasons.items())


def _named(names: list[str]) -> str:
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return listed_text([*names[:NAMED], *more])


def _fleet_check(run: Run, fleet: FleetSnapshot, on: RunOn) -> FleetCheck:
    """What the run would find on the chosen devices."""
    spec, task = RunSpec.stored(run.spec), task_of(run.task)
    return fleet_check(
        spec,
        fleet.narrowed(on),
        begins=run.resumes_from,
        host_count=run.host_count,
        task=task,
        memory=run.needs_memory or 0,
    )


def _is_refused(run: Run, study: Study, user: Any, fleet: FleetSnapshot, why: dict[int, str]) -> bool:
    """Whether the run cannot be queued again today; `why` gets the reason."""
    if _is_orphan(run):
        why[run.pk] = "the run from whose checkpoint it began was deleted."
    elif errors := _refusal(run, study, user, fleet):
        why[run.pk] = " ".join(errors.values())
    return run.pk in why


def _refusal(run: Run, study: Study, user: Any, fleet: FleetSnapshot) -> dict[str, str]:
    """What New run would object to, by field; not the predicted memory, which it lets pass: a run that was to have
    enough waits for it, as a device that is too small would end it, and `waits` says so."""
    if errors := runs.refusal(user, _again(run, study)) or _fleet_check(run, fleet, study.chosen_devices).errors:
        return errors
    spec = RunSpec.stored(run.spec)
    errors = {} if run.task else corpus_errors(spec)
    return errors if run.resume_run_id is not None else errors | weights_errors(spec, fleet)


def _again(run: Run, study: Study) -> runs.RunRequest:
    return {
        "spec": run.spec,
        "task": run.task or None,
        "name": run.name,
        "tags": run.tags,
        "study": study,
        "position": run.position,
        "exclusive": not study.side_by_side,
        "host_count": run.host_count,
        "retries": retries_at_first(run),
        "resume_from": run.resumes_from,
        "anyway": run.needs_memory is None,
        "repeats": root_of(run),
    }


def _is_disturbed(run: Run) -> bool:
    return run.state == State.SUCCEEDED and run.exclusive and not is_quiet(run.summary)


def _was_cut_off(run: Run) -> bool:
    return run.state in (State.FAILED, State.LOST) and run.cause in CUT_OFF
