"""The list of studies, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import Count, Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.roles import may_submit
from dashboard.live.changes import answer, priced
from dashboard.runs.models import ACTIVE, Run, State
from dashboard.studies.entry_points import ENTRY_POINTS
from dashboard.studies.fitting import fit
from dashboard.studies.listing import Listing, awaits_the_first
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache

PER_PAGE = 20
FEW = 8
"""So many studies are seen at a glance: the list begins with them, not with fields to search it."""
_MEANT = Q(kind=fit.KIND, runs__cause=fit.OUT_OF_MEMORY)
"""A fit study's run that reached its limit, as intended."""
_SETTING = Coalesce(OuterRef("runs__repeats"), OuterRef("runs__pk"))
_LAST = ~Q(
    Exists(
        Run.objects.filter(Q(repeats=_SETTING) | Q(pk=_SETTING))
        .filter(Q(pk__gt=OuterRef("runs__pk")) | Q(state=State.SUCCEEDED))
        .order_by()
    )
)
"""The newest run of its setting, none of whose runs succeeded; of others that ended early, pages show another run of
the setting (`runs.standing`)."""
_OPEN = Q(runs__state__in=(State.QUEUED, *ACTIVE))


@require_GET
def list_page(request: HttpRequest) -> HttpResponse:
    """Newest first, each with its verdict; `?page=` goes back in time, `?q=`, `?owner=` and `?kind=` filter."""
    context = list_context(request)
    many = context["listing"].filtered or context["page"].paginator.count > FEW
    points = [point for point in ENTRY_POINTS if context["may_submit"] or not point.queues]
    context |= {"entry_points": points, "options": context["listing"].options(), "many": many}
    return render(request, "studies/list.html", context)


@require_GET
@priced
def list_changes(request: HttpRequest) -> JsonResponse:
    """The parts of the list that differ from what the browser has."""
    return answer(request, "studies/parts", {"studies": "cards"}, list_context(request), {})


def list_context(request: HttpRequest) -> dict[str, Any]:
    """The studies of one page of the list."""
    listing = Listing.parse(request.GET)
    pks = listing.studies().values_list("pk", flat=True)
    listed: Page[Any] = Paginator(pks, PER_PAGE).get_page(request.GET.get("page"))
    studies = _counted(list(listed))
    verdicts = answer_cache.verdicts(studies)
    for study in studies:
        study.verdict = verdicts[study.pk]  # type: ignore[attr-defined]
    context = {"listing": listing, "page": listed, "studies": studies, "may_submit": may_submit(request.user)}
    return context | {"first": not studies and not listing.filtered and awaits_the_first()}


def _counted(pks: Sequence[int]) -> list[Study]:
    """These studies, newest first, with the numbers of their runs. Counted for one page at a time: the counts of a
    hundred studies take longer than all else on it."""
    return list(
        Study.objects.filter(pk__in=pks)
        .select_related("owner", "baseline")
        .order_by("-pk")
        .annotate(
            total=Count("runs", filter=Q(runs__repeats=None), distinct=True),  # each setting counts once
            done=F("total") - Count("runs", filter=_OPEN, distinct=True),
            failed=Count("runs", filter=Q(runs__state__in=(State.FAILED, State.LOST)) & _LAST & ~_MEANT, distinct=True),
            cancelled=Count("runs", filter=Q(runs__state=State.CANCELLED) & _LAST, distinct=True),
            under_way=Count("runs", filter=Q(runs__state__in=(State.STARTING, State.RUNNING)), distinct=True),
        )
    )
