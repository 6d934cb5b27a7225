"""API operations on runs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Query, Router, Status

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.idempotency import Key, made_once
from dashboard.api.named import require_owner, require_run, require_study
from dashboard.api.paging import LISTS, PageNumber, page_of
from dashboard.api.thin_schemas import ThinIn, ThinnedOut
from dashboard.api.waiting import MOST_S
from dashboard.deadlocks import again_after_deadlock
from dashboard.json_values import clean
from dashboard.runs import cancelling, removal, resuming, selectors, services, submission
from dashboard.runs.browse import field_terms
from dashboard.runs.browse.list_views import as_row
from dashboard.runs.browse.listing import EXAMPLE, moment
from dashboard.runs.damaged import damaged
from dashboard.runs.generation import generated_text, generating
from dashboard.runs.models import Run
from dashboard.runs.tracing import thinning
from dashboard.runs.tracing.thinned import thinned
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting import run_on as places
from dashboard.studies import joining
from dashboard.studies.models import Study
from parallel_core.model_spec import BYTES

router = Router(tags=["runs"])
RUNS = Run.objects.select_related("owner")
RunId = Annotated[s.Id, Path(description="number of the run")]
Sort = Annotated[
    str,
    Query(
        pattern=f"^-?({'|'.join(selectors.SORTS)})$",
        description="a column, with - the other way; those without it last",
    ),
]


MADE = {200: s.Envelope[s.RunDetail], 201: s.Envelope[s.RunDetail]}
"""Responses to a request that queues a run, which may come twice with one key."""


@router.post("", auth=SUBMIT, response={**MADE, **s.refusals(400, 401, 403, 413, 422)})
def submit(request: HttpRequest, payload: s.SubmitIn, key: Key = None) -> Any:
    """Queues a run, of its own or after the others of a `study`. 422 with a message by field if the spec is invalid, or
    no worker has the devices or the memory. `meta.warnings`: what New run would have warned of; none when a key is
    sent again."""
    require_member(request)
    study, asked = _study(payload), _submission(payload)

    def make(also: services.Also) -> Run:
        if study is None:
            return submission.submit(owner=request.user, also=also, **asked)
        return joining.submit(owner=request.user, study=study, request=asked, also=also)

    status, run = made_once(request, key, payload.model_dump_json().encode(), RUNS, make)
    return Status(status, {"data": detail(run), "meta": {"warnings": list(run.warnings)}})


def _submission(payload: s.SubmitIn) -> submission.Submission:
    named = payload.resume_from
    return {
        "spec": payload.spec.model_dump(mode="json"),
        "name": payload.name,
        "tags": payload.tags,
        "retries": payload.retries,
        "host_count": payload.hosts,
        "run_on": payload.run_on,
        "priority": levels.read(payload.priority) or 0,
        "anyway": payload.anyway,
        "resume_from": {"run": named.run, "step": named.step} if named else None,
        "based_on": require_run(payload.based_on, "based_on"),
    }


def _study(payload: s.SubmitIn) -> Study | None:
    """Raises Invalid if there is no such study, or another place in the queue is asked for than that of its runs."""
    found = require_study(payload.study)
    if found is not None:
        given = {"run_on": (payload.run_on, found.run_on), "priority": (payload.priority, found.priority_name)}
        sent = payload.model_fields_set
        others = [name for name, (asked, theirs) in given.items() if name in sent and asked != theirs]
        if others:
            raise services.Invalid(dict.fromkeys(others, "A run of a study has this from the study: leave it out."))
    return found


@router.get("", auth=READ, response={200: s.Envelope[list[s.RunListed]], **s.refusals(*LISTS)})
def list_runs(
    request: HttpRequest,
    q: s.Text = "",
    state: Annotated[list[s.StateName], Query(max_length=8)] = [],  # noqa: B006
    owner: s.Text = "",
    strategy: s.Text = "",
    tag: s.Text = "",
    study: s.Id | None = None,
    created_after: Annotated[s.Moment | None, Query(description="then or later, UTC unless it says otherwise")] = None,
    created_before: Annotated[s.Moment | None, Query(description="before then")] = None,
    spec: Annotated[bool, Query(description="each run with its spec")] = False,
    sort: Sort = "-id",
    page: PageNumber = 1,
    per_page: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Any:
    """Runs, newest first unless sorted otherwise; by step time, throughput or memory, those that have not succeeded
    come after those that have. `meta` has count, page, per_page. `q`: in their name, strategy, tags or notes, or their
    number; a term such as `train.lr=0.003` finds runs with that value of the spec."""
    if wrong := field_terms.parse(q.strip()).wrong:
        raise services.Invalid({"q": " ".join(wrong)})
    require_owner(owner)
    require_study(study)
    filters = selectors.Filters(
        q=q.strip(),
        states=tuple(state),
        owner=owner,
        strategy=strategy,
        tag=tag,
        study=study,
        created_after=_moment("created_after", created_after),
        created_before=_moment("created_before", created_before),
        sort=sort,
    )
    rows = selectors.list_runs(filters).defer("summary", *(() if spec else ("spec",)))
    some, meta = page_of(rows, page, per_page)
    return {"data": [record(run) | {"spec": run.spec if spec else None} for run in some], "meta": meta}


def _moment(name: str, text: str | None) -> datetime | None:
    """Raises Invalid at `name` if the text is no date that there is."""
    found = moment(text) if text else None
    if text and found is None:
        raise services.Invalid({name: f"There is no such date; write one such as {EXAMPLE}."})
    return found


@router.get("/{run_id}", auth=READ, response={200: s.Envelope[s.RunDetail], **s.refusals(*s.SEES)})
def get_run(
    request: HttpRequest,
    run_id: RunId,
    wait: Annotated[int, Query(ge=0, le=MOST_S, description="seconds; the answer comes when `state` changes")] = 0,
) -> Any:
    """One run with its spec and, once it has ended, its summary. With `wait` it comes once the state is another one, or
    after so many seconds; at once if the run has ended. So a script that follows a run asks again with each answer.
    The summary is computed right after the end: with `wait` the answer has it, without it may still be {}."""
    return {"data": detail(run_of(run_id))}


@router.post("/{run_id}/cancel", auth=SUBMIT, response={200: s.Envelope[s.RunDetail], **s.refusals(*s.SEES)})
def cancel_run(request: HttpRequest, run_id: RunId) -> Any:
    """Requests that the run is stopped. A run that has ended is not changed; a second request has no effect."""
    require_member(request)
    return {"data": detail(cancelling.request_cancel(run=run_of(run_id), user=request.user))}


@router.patch(
    "/{run_id}", auth=SUBMIT, response={200: s.Envelope[s.RunDetail], **s.refusals(400, 401, 403, 404, 413, 422)}
)
def edit_run(request: HttpRequest, run_id: RunId, payload: s.RunEdit) -> Any:
    """Renames a run, or replaces its tags or notes, or while it is queued its place in the queue; only for its owner
    and admins. High priority is given by admins only."""
    require_member(request)
    run, asked = run_of(run_id), payload.model_dump(exclude_none=True)
    _edit(run, request.user, {name: asked.pop(name) for name in ("run_on", "priority") if name in asked}, asked)
    return {"data": detail(run_of(run_id))}


@again_after_deadlock
@transaction.atomic
def _edit(run: Run, user: Any, place: dict[str, Any], words: dict[str, Any]) -> None:
    """Changes its place in the queue and its words: all of it or nothing."""
    if place:
        level = levels.read(place.get("priority", ""))
        queueing.change(run=run, user=user, run_on=place.get("run_on"), priority=level)
    if words or not place:
        services.edit(run=run, user=user, **words)


@router.delete("/{run_id}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_run(request: HttpRequest, run_id: RunId) -> Any:
    """Deletes a run that has ended, with all its data and its checkpoints on the workers' disks; only for its owner and
    admins. 422 if it has not ended, or another run resumes from its checkpoint."""
    require_member(request)
    removal.delete(runs=[run_of(run_id).pk], user=request.user)
    return Status(204, None)


@router.post(
    "/{run_id}/free-space", auth=SUBMIT, response={200: s.Envelope[s.RunDetail], **s.refusals(400, *s.SEES, 422)}
)
def free_space(request: HttpRequest, run_id: RunId, payload: ThinIn) -> Any:
    """Drops the spans of a run's older traced steps, and keeps its numbers and the newest traced steps; only for its
    owner and admins. 422 if it has not ended, or has just ended."""
    require_member(request)
    run = run_of(run_id)
    thinning.thin(runs=[run.pk], user=request.user, profiles=payload.profiles)
    return {"data": detail(run)}


@router.post("/{run_id}/generate", auth=SUBMIT, response={**MADE, **s.refusals(400, 401, 403, 404, 413, 422)})
def generate(request: HttpRequest, run_id: RunId, payload: s.GenerateIn, key: Key = None) -> Any:
    """Queues a run that generates text from a checkpoint of this one. 422 with a message by field."""
    require_member(request)
    run = run_of(run_id)
    asked = payload.model_dump(exclude={"step", "tp", "pp", "dp", "name", "ids", "prompt", "run_on", "priority"})
    step = payload.step if payload.step is not None else resuming.first_choice(run) or 0
    asked |= {"prompt": _prompt(run, payload)}
    on, unread = places.read(payload.run_on)
    if unread:
        raise services.Invalid({places.FIELD: unread})
    more: dict[str, Any] = {"split": generating.Split(payload.tp, payload.pp, payload.dp), "name": payload.name}
    more |= {"on": on, "priority": levels.read(payload.priority) or 0}

    def make(also: services.Also) -> Run:
        return generating.submit(owner=request.user, run=run, step=step, request=asked, also=also, **more)

    try:
        status, made = made_once(request, key, payload.model_dump_json().encode(), RUNS, make)
    except services.Invalid as error:
        begins = "ids" if payload.ids or _vocab(run) > BYTES else "prompt"
        fields = {begins if name == "prompt" else name: why for name, why in error.field_errors.items()}
        raise services.Invalid(fields) from error
    return Status(status, {"data": detail(made)})


def _prompt(run: Run, payload: s.GenerateIn) -> list[int]:
    """The tokens to go on from. Raises Invalid at the field that does not suit the model."""
    vocab = _vocab(run)
    if payload.prompt and payload.ids:
        raise services.Invalid({"ids": "Send prompt or ids, not both: each is where the text begins."})
    if payload.prompt and vocab > BYTES:
        raise services.Invalid({"prompt": f"The model has {vocab} tokens: give their numbers as ids."})
    return payload.ids or generating.prompt_tokens(payload.prompt, BYTES)


def _vocab(run: Run) -> int:
    """Tokens of the run's model."""
    return int(run.spec.get("model", {}).get("vocab", 0))


def run_of(pk: int) -> Run:
    return get_object_or_404(RUNS, pk=pk)


def record(run: Run) -> dict[str, Any]:
    return as_row(run)


def _checkpoints(run: Run) -> dict[str, Any]:
    """The fields of RunDetail on checkpoints."""
    rows, bad = list(run.checkpoints.order_by("step", "worker")), damaged(run)
    names = ("step", "bytes", "at", "seconds", "blocked", "held_out", "worker")
    return {
        "checkpoints": sorted({row.step for row in rows} - bad.keys()),
        "checkpoints_detail": [
            {**{name: getattr(row, name) for name in names}, "damaged": row.step in bad} for row in rows
        ],
    }


def detail(run: Run) -> dict[str, Any]:
    """All fields of one run, as RunDetail."""
    return record(run) | {
        "spec": run.spec,
        "summary": clean(run.summary),
        "retries_left": run.retries_left,
        "cancel_requested_at": run.cancel_requested_at,
        "resume_from": None if run.resume_step is None else {"run": run.resume_run_id, "step": run.resume_step},
        "based_on": run.based_on_id,
        **_checkpoints(run),
        "task": run.task,
        "thinned": ThinnedOut.of(thinned(run)),
        "generated": clean(generated_text.api_record(run)),
        "waits_for": selectors.waiting(run).sentence,
        "hosts": run.host_count,
        "placed": attempt.devices if (attempt := selectors.attempt_of(run)) else [],
    }
