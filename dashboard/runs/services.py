"""What users do to runs: submit and rename, as `cancelling` cancels them. Each checks permissions, validates, and has
its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, Unpack

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.utils import timezone
from pydantic import ValidationError

from dashboard.accounts.roles import may_change, may_submit
from dashboard.deadlocks import again_after_deadlock
from dashboard.ledger import services as ledger
from dashboard.ledger.models import Prediction
from dashboard.runs import resuming, states
from dashboard.runs.models import Corpus, Run
from dashboard.runs.name_tags_notes import changes_text, clean_notes, clean_tags, notes_errors, words_errors
from dashboard.runs.waiting import priority as levels
from parallel_core import limits
from parallel_core.analysis.quantities import sentence_text, step_text
from parallel_core.faults import sentences
from parallel_core.plan.memory import counted, fullest
from parallel_core.plan.room import device_bytes
from parallel_core.plan.strategy import label, text_label
from parallel_core.spec import RunSpec, field_errors
from workers.contract import ResumeFrom, Task, task_of

MAX_RETRIES = 10
WHEN_RETRIED = "when a worker is lost or a rank is killed"
MAX_PREDICTED_RANKS = 4096
"""For more ranks no memory is predicted: no fleet has that many, which the panel says anyway."""
NO_SUCH_CORPUS = "This yard has no such corpus; upload it first or use 'stdlib'."


class Invalid(Exception):
    """Bad input. `field_errors` = {dotted field: message for the user}."""

    def __init__(self, field_errors: dict[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {message}" for field, message in field_errors.items()))
        self.field_errors = {field: sentence_text(message) for field, message in field_errors.items()}


class Gone(Invalid):
    """What was checked a moment ago has been deleted since."""


class RunRequest(TypedDict, total=False):
    """What a run is to be; only `spec` is required.

    It may be spread over `host_count` hosts (0: over as few as it takes). With a `task` it generates text from the
    checkpoint (see `generating.submit`), or times messages (see `linking.submit`). `anyway`: it is placed on devices of
    any size, whatever memory it is predicted to need. `run_on`: the devices chosen for it, as `RunOn` writes them; the
    caller checks them. A run of a study takes this and `priority` from its study.
    """

    spec: Required[dict[str, Any]]
    name: str
    tags: Sequence[str]
    study: Any
    position: int
    exclusive: bool
    retries: int
    resume_from: ResumeFrom | None
    task: dict[str, Any] | None
    host_count: int
    repeats: int | None
    based_on: int | None
    anyway: bool
    run_on: str
    priority: int


Also = Callable[[Any], object]
"""Called with what was just written, in the same transaction: if it raises, nothing was written."""


def nothing_else(written: Any) -> None:
    """The `Also` that does nothing."""


def submit(*, owner: Any, also: Also = nothing_else, **request: Unpack[RunRequest]) -> Run:
    """Queues a run and returns it; `also` gets the run.

    1. Refuses owners who may not submit (PermissionDenied).
    2. Validates everything together; Invalid names every wrong field, and nothing is written.
    3. Writes the queued row with its Event; the controller finds it there.
    """
    return write_one(prepare(owner=owner, requests=[request]), also)


@dataclass(frozen=True)
class Prepared:
    """Runs that are checked and predicted, and not written yet."""

    owner: Any
    runs: list[Run]
    origins: list[str]
    predictions: list[Prediction]


def prepare(*, owner: Any, requests: Sequence[RunRequest]) -> Prepared:
    """The part of submitting runs, all or none, that reads, checks and simulates. Raises PermissionDenied or Invalid.

    It can take seconds, so a caller with a transaction of its own prepares before it: SQLite has one writer at a time.
    """
    if not may_submit(owner):
        raise PermissionDenied("Your account may look at runs but not submit them.")
    runs = [_checked(owner, request) for request in requests]
    predictions = ledger.predictions([run for run in runs if not run.task])
    return Prepared(owner, runs, [_origin(request) for request in requests], predictions)


@transaction.atomic
def write(prepared: Prepared) -> list[Run]:
    """The part that writes, with as many queries as for one run. A study that the runs were prepared with must have
    been saved by now. Raises Gone if a run from whose checkpoint one is to begin has been deleted since."""
    _hold_sources(prepared.runs)
    runs = Run.objects.bulk_create(prepared.runs)
    Prediction.objects.bulk_create(prepared.predictions)
    said = [f"Submitted by {prepared.owner.get_username()}{origin}." for origin in prepared.origins]
    states.record_all(zip(runs, said, strict=True), "queued", actor=prepared.owner)
    return runs


def _hold_sources(runs: Sequence[Run]) -> None:
    """Keeps the runs from whose checkpoints these begin, or on whose specs these are based, from being deleted until
    the transaction ends; forgets one of the latter that has been deleted already."""
    begun = {run.resume_run_id for run in runs if run.resume_run_id is not None}
    wanted = begun | {run.based_on_id for run in runs if run.based_on_id is not None}
    rows = Run.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    held = set(rows.values_list("pk", flat=True)) if wanted else set()
    if gone := begun - held:
        raise Gone({resuming.FIELD: f"There is no run {min(gone)}."})
    for run in runs:
        if run.based_on_id not in held:
            run.based_on_id = None


@transaction.atomic
def write_one(prepared: Prepared, also: Also = nothing_else) -> Run:
    """`write` of the only run that was prepared."""
    (run,) = write(prepared)
    also(run)
    return run


def refusal(owner: Any, request: RunRequest) -> dict[str, str]:
    """Why the request is refused, message by field; {} if it is not."""
    try:
        _checked(owner, request)
    except Invalid as error:
        return error.field_errors
    return {}


def _checked(owner: Any, request: RunRequest) -> Run:
    """The row to write. Raises Invalid."""
    resume_from, task, retries = request.get("resume_from"), request.get("task"), request.get("retries", 0)
    clean_name, tags = request.get("name", "").strip(), clean_tags(request.get("tags", ()))
    parsed, errors = _parse(request["spec"])
    errors |= _check_retries(retries) | words_errors(clean_name, tags)
    study = request.get("study")
    if study is None and (refused := levels.refusal(owner, request.get("priority", 0))):
        errors[levels.FIELD] = refused
    if parsed is not None and resume_from is not None:
        errors |= resuming.missing(resume_from) if task else resuming.check(parsed, resume_from)
    if errors or parsed is None:
        raise Invalid(errors)
    origin = {"resume_run_id": resume_from["run"], "resume_step": resume_from["step"]} if resume_from else {}
    return Run(
        **_of_spec(parsed, task),
        **origin,
        **_in_queue(owner, request),
        owner=owner,
        study=study,
        retries_left=retries,
        repeats_id=request.get("repeats"),
        based_on_id=request.get("based_on"),
        needs_memory=None if task or request.get("anyway") else predicted_need(parsed),
        name=clean_name or label(parsed)[: limits.MAX_NAME],
        tags=tags,
        queued_at=timezone.now(),
    )


def _in_queue(owner: Any, request: RunRequest) -> dict[str, Any]:
    """The fields of the row that say when and where it is placed; of a run of a study some are the study's."""
    study = request.get("study")
    return {
        "position": request.get("position", 0),
        "exclusive": request.get("exclusive", False),
        "host_count": request.get("host_count", 0),
        "run_on": request.get("run_on", "") if study is None else study.run_on,
        "priority": request.get("priority", 0) if study is None else levels.allowed(owner, study.priority),
    }


def predicted_need(spec: RunSpec) -> int | None:
    """Bytes that each of its devices must have, by the prediction for its fullest rank; None if that takes too long."""
    if spec.parallel.world > MAX_PREDICTED_RANKS or not counted(spec):
        return None
    return device_bytes(fullest(spec).total, spec.trace.memory_cap, spec.train.device)


def _of_spec(spec: RunSpec, task: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of the row that follow from spec and task."""
    return {
        "label": _label(spec, task_of(task)),
        "task": task or {},
        "spec": spec.model_dump(mode="json"),
        "devices": spec.parallel.world,
        "injected": sentences(spec.inject),
    }


def _label(spec: RunSpec, task: Task) -> str:
    if task == "generate":
        return text_label(spec.parallel)
    return task.capitalize() or label(spec)


def _origin(request: RunRequest) -> str:
    resume_from = request.get("resume_from")
    if resume_from is None:
        return ""
    does = "generate text" if request.get("task") else "go on"
    return f", to {does} from {step_text(resume_from['step'])} of run {resume_from['run']}"


def edit(
    *, run: Run, user: Any, name: str | None = None, tags: Sequence[str] | None = None, notes: str | None = None
) -> Run:
    """Renames and re-tags, and replaces the notes, with an Event. None leaves a value as it is, also one changed since
    the run was read. Raises PermissionDenied or Invalid, and Http404 if the run has been deleted since."""
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may change it.")
    values: dict[str, Any] = {} if name is None else {"name": name.strip()}
    values |= {} if tags is None else {"tags": clean_tags(tags)}
    values |= {} if notes is None else {"notes": clean_notes(notes)}
    errors = words_errors(values.get("name", ""), values.get("tags", [])) | notes_errors(values.get("notes", ""))
    if values.get("name") == "":
        errors["name"] = "A run needs a name."
    if errors:
        raise Invalid(errors)
    if values:
        _write_words(run.pk, values, user)
    for field, value in values.items():
        setattr(run, field, value)
    return run


@again_after_deadlock
@transaction.atomic
def _write_words(pk: int, values: dict[str, Any], user: Any) -> None:
    run = Run.objects.select_for_update(no_key=True).filter(pk=pk).first()
    if run is None:
        raise Http404(f"run {pk} has been deleted")
    Run.objects.filter(pk=pk).update(**values)
    if said := changes_text({field: getattr(run, field) for field in values}, values):
        states.record(run, "edited", f"{user.get_username()} {said}.", actor=user)


def _parse(spec: dict[str, Any]) -> tuple[RunSpec | None, dict[str, str]]:
    try:
        parsed = RunSpec.model_validate(spec)
    except ValidationError as error:
        return None, field_errors(error)
    return parsed, _check_corpus(parsed.train.corpus)


def uploaded_size(sha256: str) -> int | None:
    """Bytes of an uploaded corpus; None if this yard does not have it."""
    return Corpus.objects.filter(sha256=sha256).values_list("size", flat=True).first()


def _check_corpus(corpus: str) -> dict[str, str]:
    kind, _, sha256 = corpus.partition(":")
    return {"train.corpus": NO_SUCH_CORPUS} if kind == "blob" and uploaded_size(sha256) is None else {}


def _check_retries(retries: int) -> dict[str, str]:
    if 0 <= retries <= MAX_RETRIES:
        return {}
    return {"retries": f"retries must be 0 to {MAX_RETRIES}; got {retries}."}
