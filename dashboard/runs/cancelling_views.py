"""Cancels several runs, of the list or of a study, after one confirmation; says which could not be cancelled."""

from __future__ import annotations

from collections import Counter

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.accounts.guards import member_required
from dashboard.accounts.roles import may_change
from dashboard.numbers import number
from dashboard.runs.browse.list_views import back_to, none_of, ticked
from dashboard.runs.cancelling import cancel_all
from dashboard.runs.models import ENDED, Run, State
from parallel_core.analysis.quantities import plural_text

SHOWN = 12
"""The most names that the confirmation lists."""
NONE_LEFT = "No run of this study is left to cancel."


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def cancel(request: HttpRequest) -> HttpResponse:
    """GET asks for confirmation, POST cancels and redirects back.

    It is for the ticked runs (`runs=1&runs=2`), or on GET for the runs of a study that have not ended (`all_of=1`);
    only those that the user may cancel. `study=1` is only a filter of the list, as in all its addresses.
    """
    study = number(request.GET.get("all_of"))
    wanted = ticked(request.POST if request.method == "POST" else request.GET)
    asked = Q(pk__in=wanted)
    if study is not None and request.method != "POST":
        asked = Q(study=study) & ~Q(state__in=(*ENDED, State.CANCELLING))
    found = list(Run.objects.filter(asked).select_related("owner").order_by("pk"))
    back = back_to(request) if study is None else reverse("studies:page", args=[study])
    if not found:
        messages.info(request, none_of(wanted) if study is None else NONE_LEFT)
        return redirect(back)
    mine = [run for run in found if may_change(request.user, run)]
    able = [run for run in mine if run.state not in ENDED]
    left = {"ended": len(mine) - len(able), "others": len(found) - len(mine)}
    if request.method == "POST":
        cancelled = cancel_all(able, request.user)
        messages.success(request, _done(len(cancelled), **left))
        return redirect(back)
    states = Counter(run.state == State.QUEUED for run in able)
    context = {"runs": able, "shown": able[:SHOWN], "more": len(able) - SHOWN, "back": back, **left}
    return render(request, "runs/cancel_many.html", context | {"queued": states[True], "active": states[False]})


def _done(cancelled: int, ended: int, others: int) -> str:
    parts = [f"{plural_text(cancelled, 'run')} cancelled or asked to stop."]
    parts += [f"{ended} had ended already."] * bool(ended)
    parts += [f"{others} of others left as they are."] * bool(others)
    return " ".join(parts)
