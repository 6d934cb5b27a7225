"""What people do to runs: submit, cancel, rename. Each checks the right, validates, and owns its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from dashboard.accounts.roles import may_change, may_submit
from dashboard.ledger import services as ledger
from dashboard.live.announce import announce
from dashboard.runs import resuming, states
from dashboard.runs.models import ACTIVE, Corpus, Run, State
from parallel_core import limits
from parallel_core.faults import sentences
from parallel_core.plan.strategy import label
from parallel_core.spec import RunSpec, field_errors
from workers.contract import ResumeFrom

MAX_TAGS = 20
MAX_TAG = 40
MAX_RETRIES = 10


class Invalid(Exception):
    """Bad input. `field_errors` = {dotted field: message for a person}."""

    def __init__(self, field_errors: dict[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {message}" for field, message in field_errors.items()))
        self.field_errors = field_errors


def submit(
    *,
    owner: Any,
    spec: dict[str, Any],
    name: str = "",
    tags: Sequence[str] = (),
    study: Any = None,
    position: int = 0,
    exclusive: bool = False,
    retries: int = 0,
    resume_from: ResumeFrom | None = None,
    wish: dict[str, Any] | None = None,
    over_hosts: int = 0,
    repeats: int | None = None,
) -> Run:
    """Queues a run and returns it, to be spread over `over_hosts` hosts (0: as few as it takes). With a `wish` it
    generates text from the checkpoint (see `generating.submit`), or times messages (`linking.submit`).

    1. Refuses owners who may not submit (PermissionDenied).
    2. Validates everything together; Invalid names every wrong field, and nothing is written.
    3. Writes the queued row with its Event; the controller finds it there.
    """
    if not may_submit(owner):
        raise PermissionDenied("Your account may look at runs but not submit them.")
    clean_name, clean_tags = name.strip(), _clean_tags(tags)
    parsed, errors = _parse(spec)
    errors |= _check_retries(retries) | _check_words(clean_name, clean_tags)
    if parsed is not None and resume_from is not None and wish is None:
        errors |= resuming.check(parsed, resume_from)
    if errors or parsed is None:
        raise Invalid(errors)
    about = {"owner": owner, "study": study, "position": position, "exclusive": exclusive, "retries_left": retries}
    about |= {"over_hosts": over_hosts, "repeats_id": repeats}
    about |= {"name": clean_name or label(parsed), "tags": clean_tags}
    return _queue(parsed, about, resume_from, wish)


def _queue(spec: RunSpec, about: dict[str, Any], resume_from: ResumeFrom | None, wish: dict[str, Any] | None) -> Run:
    """Writes the row with its Event and prediction; `about` = those of its fields that do not follow from the spec."""
    origin = {"resume_run_id": resume_from["run"], "resume_step": resume_from["step"]} if resume_from else {}
    with transaction.atomic():
        run = Run.objects.create(**_of_spec(spec, wish), **about, **origin, queued_at=timezone.now())
        if not wish:
            ledger.predict(run)
        said = f"Submitted by {run.owner.get_username()}{_origin(resume_from, wish)}."
        states.record(run, "queued", said, actor=run.owner)
    return run


def _of_spec(spec: RunSpec, wish: dict[str, Any] | None) -> dict[str, Any]:
    """Fields of the row that follow from what is to be done."""
    return {
        "label": label(spec) if not wish else "Links" if "links" in wish else "Generate",
        "wish": wish or {},
        "spec": spec.model_dump(mode="json"),
        "devices": spec.parallel.world,
        "broken": sentences(spec.inject),
    }


def _origin(resume_from: ResumeFrom | None, wish: dict[str, Any] | None) -> str:
    if resume_from is None:
        return ""
    does = "generate text" if wish else "go on"
    return f", to {does} from step {resume_from['step']} of run {resume_from['run']}"


def request_cancel(*, run: Run, user: Any) -> Run:
    """Cancels a queued run at once; asks the controller to stop an active one. An ended run is left as it is.

    The request stays on the row until the run has ended, so that it outlives a controller that is away.
    """
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may cancel it.")
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run.pk)
        if run.state in ACTIVE and run.cancel_requested_at is None:
            run.cancel_requested_at = timezone.now()
            run.save(update_fields=("cancel_requested_at",))
            states.record(run, "cancel_requested", f"{user.get_username()} asked to cancel it.", actor=user)
        elif run.state == State.QUEUED:
            run = states.cancel_queued(run, actor=user)
    return run


def edit(*, run: Run, user: Any, name: str, tags: Sequence[str]) -> Run:
    """Renames and re-tags. Raises PermissionDenied or Invalid."""
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may change it.")
    clean_name, clean_tags = name.strip(), _clean_tags(tags)
    errors = _check_words(clean_name, clean_tags)
    if not clean_name:
        errors["name"] = "A run needs a name."
    if errors:
        raise Invalid(errors)
    run.name, run.tags = clean_name, clean_tags
    run.save(update_fields=("name", "tags"))
    announce(run.pk, run.study_id, "state")
    return run


def _parse(spec: dict[str, Any]) -> tuple[RunSpec | None, dict[str, str]]:
    try:
        parsed = RunSpec.model_validate(spec)
    except ValidationError as error:
        return None, field_errors(error)
    return parsed, _check_corpus(parsed.train.corpus)


def _check_corpus(corpus: str) -> dict[str, str]:
    kind, _, sha256 = corpus.partition(":")
    if kind == "blob" and not Corpus.objects.filter(sha256=sha256).exists():
        return {"train.corpus": "This yard has no such corpus; upload it first or use 'stdlib'."}
    return {}


def _check_retries(retries: int) -> dict[str, str]:
    if 0 <= retries <= MAX_RETRIES:
        return {}
    return {"retries": f"retries must be 0 to {MAX_RETRIES}; got {retries}."}


def _clean_tags(tags: Sequence[str]) -> list[str]:
    """Stripped, without blanks and doubles, in the order given."""
    return list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))


def _check_words(name: str, tags: list[str]) -> dict[str, str]:
    errors: dict[str, str] = {}
    if len(name) > limits.MAX_NAME:
        errors["name"] = f"A name has at most {limits.MAX_NAME} characters; this one has {len(name)}."
    if "\x00" in name or any("\x00" in tag for tag in tags):
        errors["name" if "\x00" in name else "tags"] = "Null characters cannot be stored."
    if len(tags) > MAX_TAGS:
        errors["tags"] = f"At most {MAX_TAGS} tags; got {len(tags)}."
    elif any(len(tag) > MAX_TAG for tag in tags):
        errors["tags"] = f"A tag has at most {MAX_TAG} characters."
    return errors
