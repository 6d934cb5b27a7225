"""The whole log of a rank as a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from dashboard.accounts.guards import token_may_read
from dashboard.runs.models import LogChunk, Run
from dashboard.streaming import streamed


@token_may_read
@require_safe
def whole(request: HttpRequest, pk: int, rank: int) -> StreamingHttpResponse:
    """What a rank has written so far, as the bytes that it wrote; empty if it wrote nothing. 404 for a rank that the
    run does not have."""
    run = get_object_or_404(Run, pk=pk)
    if rank >= run.devices:
        raise Http404(f"run {pk} has no rank {rank}")
    response = StreamingHttpResponse(streamed(pieces(run, rank)), content_type="text/plain; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="run-{pk}-rank-{rank}.txt"'
    return response


def pieces(run: Run, rank: int) -> Iterator[bytes]:
    """One chunk at a time. Where several attempts wrote, a line before each says which."""
    chunks = LogChunk.objects.filter(attempt__run=run, rank=rank).order_by("attempt__number", "start")
    rows = list(chunks.values_list("attempt__number", "pk"))
    several = len({number for number, _ in rows}) > 1
    ended = True  # the line before
    for number, own in groupby(rows, itemgetter(0)):
        if several:
            yield f"{'' if ended else chr(10)}=== attempt {number} ===\n".encode()
        for _, chunk in own:
            data = bytes(LogChunk.objects.filter(pk=chunk).values_list("data", flat=True).first() or b"")
            yield data
            ended = data.endswith(b"\n")
