"""API operations on studies."""

from __future__ import annotations

from typing import Annotated, Any

from django.db.models import Count
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Router, Status

from dashboard.api import schemas as s
from dashboard.api import study_schemas as t
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.idempotency import Key, made_once
from dashboard.api.named import require_kind, require_owner
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of
from dashboard.api.runs import record
from dashboard.json_values import clean
from dashboard.runs.models import Run
from dashboard.runs.selectors import Filters, list_runs
from dashboard.runs.services import Also, Invalid
from dashboard.runs.submission import WARNINGS
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import run_on as places
from dashboard.studies import editing, removal, reruns, services
from dashboard.studies.listing import Listing
from dashboard.studies.models import Study

router = Router(tags=["studies"])
STUDIES = Study.objects.select_related("owner")
StudyId = Annotated[s.Id, Path(description="number of the study")]


@router.get(
    "",
    auth=READ,
    response={200: s.Envelope[list[t.StudyOut]], **s.refusals(*LISTS)},
)
def list_studies(
    request: HttpRequest,
    q: s.Text = "",
    owner: s.Text = "",
    kind: s.Text = "",
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Any:
    """Studies, newest first; `q`: in their name or notes, or their number."""
    require_owner(owner)
    require_kind(kind)
    rows = Listing(q.strip(), owner, kind).studies().select_related("owner")
    some, meta = page_of(rows, page, per_page)
    counts = _counts([study.pk for study in some])
    return {"data": [_study(study, counts.get(study.pk, {})) for study in some], "meta": meta}


@router.post(
    "",
    auth=SUBMIT,
    response={200: s.Envelope[t.StudyDetail], 201: s.Envelope[t.StudyDetail], **s.refusals(400, 401, 403, 413, 422)},
)
def create_study(request: HttpRequest, payload: t.StudyIn, key: Key = None) -> Any:
    """Queues runs as one study, as New study does: those that no worker could run are left out, and `meta.skipped` says
    why by label. `meta.warnings`: what New study would have warned of, by label; none when a key is sent again. 422 if
    none is left, or a label is not unique."""
    require_member(request)

    def make(also: Also) -> Study:
        listed = [(one.label, one.spec) for one in payload.runs]
        on, unread = places.read(payload.run_on)
        if unread:
            raise Invalid({places.FIELD: unread})
        queue = services.InQueue(on, levels.read(payload.priority) or 0, payload.side_by_side)
        more: dict[str, Any] = {"repeats": payload.repeats, "retries": payload.retries, "queue": queue, "also": also}
        return services.create_listed(owner=request.user, name=payload.name, listed=listed, **more)

    try:
        status, study = made_once(request, key, payload.model_dump_json().encode(), STUDIES, make)
    except Invalid as error:
        raise Invalid({"runs" if name == "plan" else name: why for name, why in error.field_errors.items()}) from error
    said = {"skipped": dict(study.settings.get("skipped", ())), "warnings": _warnings(study)}
    return Status(status, {"data": _detail(study), "meta": said})


def _warnings(study: Study) -> dict[str, list[str]]:
    """What was warned of when the study was created, by label."""
    said: dict[str, list[str]] = {}
    for kind, sentences in study.warnings.items():
        for name, why in sentences.items():
            said.setdefault(name, []).append(f"{WARNINGS[kind]} {why}")
    return said


@router.get("/{study_id}", auth=READ, response={200: s.Envelope[t.StudyDetail], **s.refusals(*s.SEES)})
def get_study(request: HttpRequest, study_id: StudyId) -> Any:
    """One study with its runs in order."""
    return {"data": _detail(get_object_or_404(STUDIES, pk=study_id))}


def _detail(study: Study) -> dict[str, Any]:
    """All fields of one study, as StudyDetail."""
    runs = list_runs(Filters(study=study.pk)).defer("spec", "summary").order_by("position", "pk")
    return _study(study, _counts([study.pk]).get(study.pk, {})) | {
        "notes": study.notes,
        "base": clean(study.base),
        "settings": clean(study.settings),
        "members": [record(run) | {"position": run.position, "repeats": run.repeats_id} for run in runs],
    }


@router.post(
    "/{study_id}/again", auth=SUBMIT, response={200: s.Envelope[t.AgainOut], **s.refusals(400, 401, 403, 404, 413, 422)}
)
def run_again(request: HttpRequest, study_id: StudyId, payload: t.AgainIn) -> Any:
    """Queues runs of a study once more, in their places; only for its owner and admins. Settings with a run under way
    are left out. Of a study of kind fit these are the runs that were cut off or cancelled and so ended a search without
    an answer: the search goes on. One that a worker refused, or whose own error ended it, is not run again, and its
    search stays stopped."""
    require_member(request)
    refused: dict[int, str] = {}
    study, which = get_object_or_404(Study, pk=study_id), reruns.WHICH[payload.which]
    queued = reruns.run_again(study=study, user=request.user, which=which, refused=refused)
    whys = {"refused": reruns.by_name(refused), "waits": reruns.by_name(reruns.waits(queued))}
    return {"data": {"queued": [record(run) for run in queued], **whys}}


@router.patch(
    "/{study_id}", auth=SUBMIT, response={200: s.Envelope[t.StudyDetail], **s.refusals(400, 401, 403, 404, 413, 422)}
)
def edit_study(request: HttpRequest, study_id: StudyId, payload: t.StudyEdit) -> Any:
    """Renames a study, replaces its notes, or changes the place in the queue of all its queued runs and of those that
    join it later; only for its owner and admins. High priority is given by admins only."""
    require_member(request)
    study = get_object_or_404(STUDIES, pk=study_id)
    changed = payload.model_dump(exclude_none=True)
    if "priority" in changed:
        changed["priority"] = levels.read(changed["priority"])
    return {"data": _detail(editing.edit(study=study, user=request.user, **changed))}


@router.post("/{study_id}/cancel", auth=SUBMIT, response={200: s.Envelope[t.CancelOut], **s.refusals(*s.SEES)})
def cancel_study(request: HttpRequest, study_id: StudyId) -> Any:
    """Requests that all runs of a study are stopped that have not ended; only for its owner and admins. A second
    request has no effect."""
    require_member(request)
    cancelled, left = services.cancel(study=get_object_or_404(STUDIES, pk=study_id), user=request.user)
    return {"data": {"cancelled": [record(run) for run in cancelled], "left": [record(run) for run in left]}}


@router.delete("/{study_id}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_study(request: HttpRequest, study_id: StudyId) -> Any:
    """Deletes a study with all its runs; only for its owner and admins. 422 if one of the runs has not ended."""
    require_member(request)
    removal.delete(study=get_object_or_404(STUDIES, pk=study_id), user=request.user)
    return Status(204, None)


def _counts(studies: list[int]) -> dict[int, dict[str, int]]:
    """study -> state -> number of runs."""
    out: dict[int, dict[str, int]] = {}
    rows = Run.objects.filter(study__in=studies).order_by().values_list("study", "state").annotate(n=Count("pk"))
    for study, state, n in rows:
        out.setdefault(study, {})[state] = n
    return out


def _study(study: Study, runs: dict[str, int]) -> dict[str, Any]:
    return {
        "id": study.pk,
        "name": study.name,
        "kind": study.kind,
        "owner": study.owner.get_username(),
        "created_at": study.created_at,
        "runs": runs,
        "baseline": study.baseline_id,
        "run_on": study.run_on,
        "priority": study.priority_name,
        "side_by_side": study.side_by_side,
    }
