"""API operations on studies, workers and corpora."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as File
from typing import Annotated, Any

from django.core.files.storage import default_storage
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.log import log_response
from ninja import Path, Router, Status
from ninja.errors import HttpError

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, WORKER, require_member
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of
from dashboard.api.runs import clean, record
from dashboard.errors import json_error
from dashboard.fleet import selectors as fleet
from dashboard.runs.corpora import storage_name
from dashboard.runs.models import Corpus, Run
from dashboard.runs.selectors import Filters, list_runs
from dashboard.streaming import BLOCK, streamed
from dashboard.studies import removal
from dashboard.studies.models import Study
from workers.contract import NO_SUCH_BLOB

router = Router()
RANGE = re.compile(r"^bytes=(\d{1,15})-$")
StudyId = Annotated[s.Id, Path(description="number of the study")]


@router.get(
    "/studies",
    auth=READ,
    tags=["studies"],
    response={200: s.Envelope[list[s.StudyOut]], **s.refusals(*LISTS)},
)
def list_studies(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Any:
    """Studies, newest first."""
    rows = Study.objects.select_related("owner")
    some, meta = page_of(rows, page, per_page)
    counts = _counts([study.pk for study in some])
    return {"data": [_study(study, counts.get(study.pk, {})) for study in some], "meta": meta}


@router.get(
    "/studies/{study_id}", auth=READ, tags=["studies"], response={200: s.Envelope[s.StudyDetail], **s.refusals(*s.SEES)}
)
def get_study(request: HttpRequest, study_id: StudyId) -> Any:
    """One study with its runs in order."""
    study = get_object_or_404(Study.objects.select_related("owner"), pk=study_id)
    runs = list_runs(Filters(study=study.pk)).defer("spec", "summary").order_by("position", "pk")
    data = _study(study, _counts([study.pk]).get(study.pk, {})) | {
        "base": clean(study.base),
        "settings": clean(study.settings),
        "members": [record(run) for run in runs],
    }
    return {"data": data}


@router.delete("/studies/{study_id}", auth=SUBMIT, tags=["studies"], response={204: None, **s.refusals(*s.SEES)})
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


@router.get(
    "/workers", auth=READ, tags=["fleet"], response={200: s.Envelope[list[s.WorkerOut]], **s.refusals(401, 403)}
)
def workers(request: HttpRequest) -> Any:
    """All workers with their devices and the runs on them."""
    return {"data": [_worker(view) for view in fleet.workers()]}


def _worker(view: fleet.WorkerView) -> dict[str, Any]:
    worker = view.worker
    about = ("name", "host", "version", "draining", "leaving", "across_hosts")
    names = (*about, "load", "memory_total", "memory_available", "disk_free")
    fields = ("index", "kind", "name", "memory_total", "memory_used", "load")
    devices = [
        {**{f: getattr(device, f) for f in fields}, "run": device.run.pk if device.run else None}
        for device in view.devices
    ]
    return {
        **{name: getattr(worker, name) for name in names},
        "silent": view.silent,
        "heartbeat_age_s": view.age,
        "devices": devices,
        "runs": [run.pk for run in view.runs],
    }


@router.get(
    "/blobs/{sha256}",
    auth=WORKER,
    tags=["blobs"],
    response=s.refusals(401, 403, 404, 416, 422),
    openapi_extra={"responses": {200: {"description": "the bytes", "content": {"application/octet-stream": {}}}}},
)
def blob(request: HttpRequest, sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]) -> HttpResponse:
    """The bytes of an uploaded corpus. `Range: bytes=N-` resumes an interrupted transfer."""
    if sha256 == NO_SUCH_BLOB:
        return _token_is_good(request)
    corpus = get_object_or_404(Corpus, sha256=sha256)
    if not default_storage.exists(storage_name(sha256)):
        raise Http404
    start = _start(request.headers.get("Range", ""), corpus.size)
    chunks = streamed(_read(File(default_storage.path(storage_name(sha256))), start))
    response = StreamingHttpResponse(chunks, status=206 if start else 200, content_type="application/octet-stream")
    response.headers["Content-Length"] = str(corpus.size - start)
    response.headers["Accept-Ranges"] = "bytes"
    response.headers["ETag"] = f'"{sha256}"'
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{corpus.size - 1}/{corpus.size}"
    return response  # type: ignore[return-value]


def _token_is_good(request: HttpRequest) -> HttpResponse:
    """The 404 that shows a worker that its token is valid; logged as debug, as every worker asks once a minute."""
    answer = json_error(404, "No text has this name.")
    log_response("%s", "a worker's token is good", response=answer, request=request, level="debug")
    return answer


def _start(header: str, size: int) -> int:
    found = RANGE.match(header)
    start = int(found.group(1)) if found else 0
    if start and start >= size:
        raise HttpError(416, f"The file has {size} bytes; there is nothing from byte {start} on.")
    return start


def _read(path: File, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(BLOCK):
            yield chunk
