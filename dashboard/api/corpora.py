"""API operations on corpora: texts that runs can train on, and their bytes, which workers fetch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import ninja
from django.core.files.storage import default_storage
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.utils.log import log_response
from ninja import File, Router, Schema, Status
from ninja.errors import HttpError
from ninja.files import UploadedFile
from pydantic import Field

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, WORKER, require_member
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of
from dashboard.errors import json_error
from dashboard.runs.models import Corpus
from dashboard.runs.texts import corpora
from dashboard.streaming import BLOCK, streamed
from workers.contract import NO_SUCH_BLOB

router = Router(tags=["corpora"])
blobs = Router(tags=["blobs"])
RANGE = re.compile(r"^bytes=(\d{1,15})-$")


class CorpusOut(Schema):
    """An uploaded text. `corpus` is the value of `train.corpus` in a spec that trains on it."""

    corpus: str
    sha256: str
    name: str
    size: int = Field(description="bytes")
    owner: str
    created_at: datetime


@router.get("", auth=READ, response={200: s.Envelope[list[CorpusOut]], **s.refusals(*LISTS)})
def list_corpora(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Any:
    """Uploaded texts, newest first. The built-in text `stdlib` always exists and is not listed."""
    rows = Corpus.objects.select_related("owner").order_by("-pk")
    some, meta = page_of(rows, page, per_page)
    return {"data": [_record(row) for row in some], "meta": meta}


@router.post("", auth=SUBMIT, response={201: s.Envelope[CorpusOut], **s.refusals(400, 401, 403, 413, 422)})
def upload_corpus(
    request: HttpRequest,
    upload: Annotated[UploadedFile, File(description=f"UTF-8 text, at most {corpora.MAX_MIB} MiB")],
) -> Any:
    """Stores a text (multipart form, field `upload`). The same bytes are stored once; larger texts get 413 without
    being read."""
    require_member(request)
    return Status(201, {"data": _record(corpora.store(owner=request.user, upload=upload))})


@router.delete("/{sha256}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_corpus(request: HttpRequest, sha256: Annotated[str, ninja.Path(pattern=r"^[0-9a-f]{64}$")]) -> Any:
    """Deletes an uploaded text; only for its owner and admins. 422 while a run that has not ended trains on it."""
    require_member(request)
    corpora.delete(corpus=get_object_or_404(Corpus, sha256=sha256), user=request.user)
    return Status(204, None)


def _record(corpus: Corpus) -> dict[str, Any]:
    return {
        "corpus": f"blob:{corpus.sha256}",
        "sha256": corpus.sha256,
        "name": corpus.name,
        "size": corpus.size,
        "owner": corpus.owner.get_username(),
        "created_at": corpus.created_at,
    }


@blobs.get(
    "/{sha256}",
    auth=WORKER,
    response=s.refusals(401, 403, 404, 416, 422),
    openapi_extra={"responses": {200: {"description": "the bytes", "content": {"application/octet-stream": {}}}}},
)
def blob(request: HttpRequest, sha256: Annotated[str, ninja.Path(pattern=r"^[0-9a-f]{64}$")]) -> HttpResponse:
    """The bytes of an uploaded corpus. `Range: bytes=N-` resumes an interrupted transfer."""
    if sha256 == NO_SUCH_BLOB:
        return _token_is_good(request)
    corpus = get_object_or_404(Corpus, sha256=sha256)
    if not default_storage.exists(corpora.storage_name(sha256)):
        raise Http404
    start = _start(request.headers.get("Range", ""), corpus.size)
    chunks = streamed(_read(Path(default_storage.path(corpora.storage_name(sha256))), start))
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


def _read(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(BLOCK):
            yield chunk
