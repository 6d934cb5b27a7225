"""The texts that somebody has uploaded to train on, and the page that deletes one."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.guards import member_required
from dashboard.runs.models import Corpus
from dashboard.runs.services import Invalid
from dashboard.runs.texts import corpora

MOST_LISTED = 200


@require_safe
def texts(request: HttpRequest) -> HttpResponse:
    """The newest MOST_LISTED texts; those that the user may delete have a link for it."""
    rows = Corpus.objects.select_related("owner").order_by("-pk")
    shown = list(rows[:MOST_LISTED])
    users = corpora.users_of(shown)
    listed = [(one, (own := users.get(one.pk, [])), corpora.why_stays(one, request.user, own)) for one in shown]
    return render(request, "runs/texts.html", {"texts": listed, "total": rows.count()})


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation, or says why the text stays; POST deletes it."""
    corpus = get_object_or_404(Corpus.objects.select_related("owner"), pk=pk)
    why = corpora.why_stays(corpus, request.user, corpora.users_of([corpus]).get(corpus.pk, []))
    if request.method == "POST":
        try:
            corpora.delete(corpus=corpus, user=request.user)
        except Invalid as error:
            why = " ".join(error.field_errors.values())
        else:
            messages.success(request, f"{corpus.name} was deleted.")
            return redirect("runs:texts")
    status = 409 if request.method == "POST" else 200
    return render(request, "runs/delete_text.html", {"text": corpus, "why": why}, status=status)
