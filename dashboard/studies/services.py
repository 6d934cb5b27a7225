"""What users do to studies: create them with all their runs, or not at all. The first one is made in `starter`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.accounts.roles import may_change, may_submit
from dashboard.deadlocks import again_after_deadlock
from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot, all_cores
from dashboard.runs import name_tags_notes
from dashboard.runs import services as runs
from dashboard.runs.cancelling import cancel_all
from dashboard.runs.models import ENDED, Run
from dashboard.runs.services import Invalid
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import run_on
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study
from dashboard.studies.new import sweepable, variants
from dashboard.studies.new.axes import Axes, Swept
from dashboard.studies.new.feasible import feasible
from dashboard.studies.new.variants import USUAL_TIMED_STEPS, Plan, Spec, Variant
from parallel_core.analysis.quantities import plural_text
from parallel_core.spec import RunSpec

MAX_REPEATS = 20


@dataclass(frozen=True)
class InQueue:
    """On which devices the runs of a study may be placed, how soon, and whether several at a time."""

    run_on: RunOn = ANYWHERE
    priority: int = Priority.NORMAL
    side_by_side: bool = False


USUAL = InQueue()


@dataclass(frozen=True)
class NewStudy:
    """What a study consists of before it is queued: the spec that its runs share, its runs, and what was `asked` for
    them, as the fields of the form of its `kind`. `note` = a sentence that its page says of it."""

    kind: str
    base: Spec
    plan: Plan
    asked: dict[str, Any]
    note: str = ""


def create_matrix(
    *,
    owner: Any,
    name: str,
    base: Spec,
    axes: Axes,
    timed_steps: int = USUAL_TIMED_STEPS,
    repeats: int = 1,
    queue: InQueue = USUAL,
) -> Study:
    """A study of every combination of `axes`. Raises as `variants.matrix` and `create`."""
    plan = variants.matrix(base, axes, timed_steps)
    new = NewStudy("matrix", base, plan, {**axes.asked(), "timed_steps": timed_steps})
    return create(owner=owner, name=name, new=new, repeats=repeats, queue=queue)


def create_sweep(
    *,
    owner: Any,
    name: str,
    base: Spec,
    swept: Swept,
    timed_steps: int = USUAL_TIMED_STEPS,
    repeats: int = 1,
    queue: InQueue = USUAL,
) -> Study:
    """A study of one field of the spec, or of two and each pair of their values, everything else equal. Raises as
    `create`."""
    if unknown := {
        at: f"'{path}' is not a field that can be swept."
        for (at, _), (path, _) in zip(sweepable.AXES, swept.fields, strict=False)
        if path not in sweepable.fields()
    }:
        raise Invalid(unknown)
    plan = variants.sweep(base, swept, timed_steps)
    new = NewStudy("sweep", base, plan, {**swept.asked(), "timed_steps": timed_steps})
    return create(owner=owner, name=name, new=new, repeats=repeats, queue=queue)


def create_listed(
    *,
    owner: Any,
    name: str,
    listed: Sequence[tuple[str, RunSpec]],
    repeats: int = 1,
    retries: int = 0,
    queue: InQueue = USUAL,
    also: runs.Also = runs.nothing_else,
) -> Study:
    """A study of the runs that are `listed` (name, spec), the first of them the baseline. Raises as `create`; a name
    that two of them have is wrong at `plan`."""
    names = [called.strip() for called, _ in listed]
    if twice := [called for called, count in Counter(names).items() if count > 1]:
        raise Invalid({"plan": f"Each run needs a name of its own; several have “{twice[0]}”."})
    plan = Plan(tuple(Variant(called, spec) for called, (_, spec) in zip(names, listed, strict=True)))
    new = NewStudy("listed", listed[0][1].model_dump(mode="json"), plan, asked={})
    return create(owner=owner, name=name, new=new, repeats=repeats, retries=retries, queue=queue, also=also)


def create(
    *,
    owner: Any,
    name: str,
    new: NewStudy,
    repeats: int = 1,
    retries: int = 0,
    queue: InQueue = USUAL,
    also: runs.Also = runs.nothing_else,
) -> Study:
    """Creates the study and queues its runs, in one transaction; `also` gets the study.

    1. Refuses users who may not submit (PermissionDenied).
    2. Leaves out what no reporting worker, of those chosen, could run. Raises Invalid if there is nothing to run, too
       much, no valid name, or not this `queue` for this owner; nothing is written then.
    3. Repeats go round: the whole list once, then again, so that a slow drift of the host affects every variant.
    4. The first run of the plan is the baseline.
    """
    fleet = _fleet_for(owner, queue)
    new = replace(new, plan=feasible(new.plan, fleet, repeats=repeats))
    _check(name, new.plan, repeats)
    kept = {**new.asked, "cores": _cores(new.plan, fleet), "repeats": repeats, "note": new.note}
    kept["skipped"] = [[s.name, s.reason] for s in new.plan.skipped]
    if queue.side_by_side:
        kept["side_by_side"] = True
    queued = {"run_on": str(queue.run_on), "priority": queue.priority}
    study = Study(name=name.strip(), owner=owner, kind=new.kind, base=new.base, settings=kept, **queued)
    study.warnings = dict(new.plan.warnings)
    prepared = runs.prepare(owner=owner, requests=_requests(study, new.plan, repeats, retries))
    with transaction.atomic():
        study.save()
        study.baseline = runs.write(prepared)[0]
        study.save(update_fields=("baseline",))
        also(study)
    return study


def _fleet_for(owner: Any, queue: InQueue) -> FleetSnapshot:
    """The devices on which the owner's runs may be placed. Raises PermissionDenied, and Invalid if there is no such
    `queue` for this owner."""
    if not may_submit(owner):
        raise PermissionDenied("Your account may look at studies but not create them.")
    fleet = FleetSnapshot.now().narrowed(queue.run_on)
    refused = {run_on.FIELD: run_on.unknown(fleet), levels.FIELD: levels.refusal(owner, queue.priority)}
    if wrong := {field: why for field, why in refused.items() if why}:
        raise Invalid(wrong)
    return fleet


def _cores(plan: Plan, fleet: FleetSnapshot) -> int:
    """Number of cores that the devices of these runs share; 0 if each has its own."""
    on_cpu = all(variant.spec.train.device == "cpu" for variant in plan.variants)
    return all_cores(fleet) if on_cpu else 0


def _requests(study: Study, plan: Plan, repeats: int, retries: int) -> list[runs.RunRequest]:
    """Every variant, as often as it is repeated."""
    return [
        {
            "spec": variant.spec.model_dump(mode="json"),
            "task": variant.task,
            "resume_from": variant.begins,
            "name": variant.name + (f" #{turn + 1}" if repeats > 1 else ""),
            "study": study,
            "position": turn * len(plan.variants) + i,
            "exclusive": not study.side_by_side,
            "retries": retries,
        }
        for turn in range(repeats)
        for i, variant in enumerate(plan.variants)
    ]


def cancel(*, study: Study, user: Any) -> tuple[list[Run], list[Run]]:
    """Cancels the runs of a study that have not ended, with an event. Returns them, and those of others, which are left
    as they are.

    Raises PermissionDenied.
    """
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may cancel its runs.")
    going = list(study.runs.exclude(state__in=ENDED).select_related("owner").order_by("position", "pk"))
    mine = cancel_all([run for run in going if may_change(user, run)], user)
    before = {run.pk for run in going if run.cancel_requested_at is not None}
    if count := sum(run.pk not in before for run in mine):
        _note_cancelled(study, user, f"{user.get_username()} cancelled {plural_text(count, 'run')}.")
    return mine, [run for run in going if not may_change(user, run)]


@again_after_deadlock
@transaction.atomic
def _note_cancelled(study: Study, user: Any, said: str) -> None:
    locked = Study.locked(study.pk)
    if locked is not None:  # else it was deleted meanwhile
        locked.events.create(kind="cancelled", text=said, actor=user)


def name_errors(name: str) -> dict[str, str]:
    """What is wrong with the name of a study, at `name`; {} if nothing is."""
    return name_tags_notes.name_errors(name.strip()) if name.strip() else {"name": "A study needs a name."}


def too_many(plan: Plan, repeats: int) -> str:
    """Why a study cannot hold the runs of a plan, as a sentence; '' if it can."""
    if plan.cut:
        return f"Choose fewer combinations: {variants.too_many_text()}"
    count = len(plan.variants) * repeats
    return f"{count} runs; a study holds at most {variants.MAX_RUNS}." if count > variants.MAX_RUNS else ""


def _check(name: str, plan: Plan, repeats: int) -> None:
    errors = name_errors(name)
    if not 1 <= repeats <= MAX_REPEATS:
        errors["repeats"] = f"repeats must be from 1 to {MAX_REPEATS}; got {repeats}."
    if not plan.variants:
        why = f" {plan.skipped[0].name}: {plan.skipped[0].reason}" if plan.skipped else ""
        errors["plan"] = f"Nothing is left to run.{why}"
    elif why := too_many(plan, repeats):
        errors["plan"] = why
    if errors:
        raise Invalid(errors)
