"""API operations on corpora: texts that runs can train on."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import File, Router, Status
from ninja.files import UploadedFile

from dashboard.api import schemas as s
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of
from dashboard.runs import corpora
from dashboard.runs.models import Corpus

router = Router(tags=["corpora"])


@router.get("", auth=READ, response={200: s.Envelope[list[s.CorpusOut]], **s.refusals(*LISTS)})
def list_corpora(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Any:
    """Uploaded texts, newest first. The built-in text `stdlib` always exists and is not listed."""
    rows = Corpus.objects.select_related("owner").order_by("-pk")
    some, meta = page_of(rows, page, per_page)
    return {"data": [_record(row) for row in some], "meta": meta}


@router.post("", auth=SUBMIT, response={201: s.Envelope[s.CorpusOut], **s.refusals(400, 401, 403, 413, 422)})
def upload_corpus(
    request: HttpRequest,
    upload: Annotated[UploadedFile, File(description=f"UTF-8 text, at most {corpora.MAX_MIB} MiB")],
) -> Any:
    """Stores a text (multipart form, field `upload`). The same bytes are stored once; larger texts get 413 without
    being read."""
    require_member(request)
    return Status(201, {"data": _record(corpora.store(owner=request.user, upload=upload))})


def _record(corpus: Corpus) -> dict[str, Any]:
    return {
        "corpus": f"blob:{corpus.sha256}",
        "sha256": corpus.sha256,
        "name": corpus.name,
        "size": corpus.size,
        "owner": corpus.owner.get_username(),
        "created_at": corpus.created_at,
    }
