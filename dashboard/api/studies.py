"""API operations on studies."""

from __future__ import annotations

from typing import Annotated, Any

from django.db.models import Count
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Router, Status

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of
from dashboard.api.runs import clean, record
from dashboard.runs.models import Run
from dashboard.runs.selectors import Filters, list_runs
from dashboard.studies import removal, reruns
from dashboard.studies.listing import Listing
from dashboard.studies.models import Study

router = Router(tags=["studies"])
StudyId = Annotated[s.Id, Path(description="number of the study")]


@router.get(
    "",
    auth=READ,
    response={200: s.Envelope[list[s.StudyOut]], **s.refusals(*LISTS)},
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
    rows = Listing(q.strip(), owner, kind).studies().select_related("owner")
    some, meta = page_of(rows, page, per_page)
    counts = _counts([study.pk for study in some])
    return {"data": [_study(study, counts.get(study.pk, {})) for study in some], "meta": meta}


@router.get("/{study_id}", auth=READ, response={200: s.Envelope[s.StudyDetail], **s.refusals(*s.SEES)})
def get_study(request: HttpRequest, study_id: StudyId) -> Any:
    """One study with its runs in order."""
    study = get_object_or_404(Study.objects.select_related("owner"), pk=study_id)
    runs = list_runs(Filters(study=study.pk)).defer("spec", "summary").order_by("position", "pk")
    data = _study(study, _counts([study.pk]).get(study.pk, {})) | {
        "notes": study.notes,
        "base": clean(study.base),
        "settings": clean(study.settings),
        "members": [record(run) for run in runs],
    }
    return {"data": data}


@router.post(
    "/{study_id}/again", auth=SUBMIT, response={200: s.Envelope[s.AgainOut], **s.refusals(400, 401, 403, 404, 413, 422)}
)
def run_again(request: HttpRequest, study_id: StudyId, payload: s.AgainIn) -> Any:
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


@router.delete("/{study_id}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_study(request: HttpRequest, study_id: StudyId) -> Any:
    """Deletes a study with all its runs; only for its owner and admins. 422 if one of the runs has not ended."""
    require_member(request)
    removal.delete(study=get_object_or_404(Study.objects.select_related("owner"), pk=study_id), user=request.user)
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
    }
