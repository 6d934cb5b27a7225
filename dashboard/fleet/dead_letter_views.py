"""Pages of the records that could not be stored, for admins: each with its error, to store it again or to discard it.

A query says which records are meant: `record=1&record=2`, all of a `run=1`, or `all=1`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.db.models import Max, QuerySet, Sum
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.fleet import dead_letters
from dashboard.fleet.services import require_staff
from dashboard.live.changes import priced
from dashboard.numbers import number, numbers
from dashboard.runs.models import DeadLetter, Run
from parallel_core.analysis.quantities import plural_text

PER_PAGE = 50
NONE_MEANT = "None of these records is set aside any more."


def _staff_only(view: Callable[..., HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponseBase:
        require_staff(request.user, dead_letters.DECIDE)
        return view(request)

    return guarded


@require_safe
@_staff_only
@priced
def listed(request: HttpRequest) -> HttpResponse:
    """All of them, or those of `?run=`, the newest first."""
    asked = number(request.GET.get("run"))
    run = Run.objects.filter(pk=asked).first() if asked else None
    every = DeadLetter.objects.filter(attempt__run=run) if run else DeadLetter.objects.all()
    rows = every.select_related("attempt__run").defer("data", "attempt__run__spec", "attempt__run__summary")
    page: Page[DeadLetter] = Paginator(rows.order_by("-pk"), PER_PAGE).get_page(request.GET.get("page"))
    context = {"page": page, "run": run, "before_page": f"?{urlencode({'run': run.pk})}&" if run else "?"}
    return render(request, "fleet/set_aside.html", context)


@require_POST
@_staff_only
def store(request: HttpRequest) -> HttpResponse:
    """Asks the controller to store them again, and leads back to the list."""
    count = dead_letters.store_again(letters=_meant(request.POST), user=request.user)
    if count:
        messages.success(request, f"{plural_text(count, 'record')} will be stored again by the controller.")
    else:
        messages.info(request, NONE_MEANT)
    return redirect(_back(request.POST))


@require_http_methods(["GET", "HEAD", "POST"])
@_staff_only
def discard(request: HttpRequest) -> HttpResponse:
    """GET asks for confirmation; POST deletes them."""
    given = request.POST if request.method == "POST" else request.GET
    letters = _meant(given)
    if request.method == "POST":
        count = dead_letters.discard(letters=letters, user=request.user)
        messages.success(request, f"{plural_text(count, 'record')} discarded." if count else NONE_MEANT)
        return redirect(_back(given))
    count, size = letters.count(), letters.aggregate(size=Sum(Length("data")))["size"]
    if not count:
        messages.info(request, NONE_MEANT)
        return redirect(_back(given))
    runs = Run.objects.filter(attempts__dead_letters__in=letters).distinct().order_by("pk")
    context = {"count": count, "size": size, "runs": list(runs.values_list("pk", "name")[:PER_PAGE])}
    newest = letters.aggregate(newest=Max("pk"))["newest"]
    context |= {"meant": [*_fields(given), ("newest", newest)], "back": _back(given), "first": letters.first()}
    return render(request, "fleet/discard.html", context)


def _meant(given: QueryDict) -> QuerySet[DeadLetter]:
    """The records that are meant, of which none is newer than `newest`, if that is said; none if nothing is said."""
    every = DeadLetter.objects.all()
    if (newest := number(given.get("newest"))) is not None:
        every = every.filter(pk__lte=newest)
    if "all" in given:
        return every
    if "run" in given:
        return every.filter(attempt__run=number(given["run"]))
    return every.filter(pk__in=numbers(",".join(given.getlist("record")))[:PER_PAGE])


def _fields(given: QueryDict) -> list[tuple[str, str]]:
    """What says so and where the reader came from, as fields of a form."""
    return [(name, value) for name in ("all", "run", "record", "of") for value in given.getlist(name)]


def _back(given: QueryDict) -> str:
    """The address that the reader came from: the fleet's, or the list, of one run, if that is said, else of all."""
    if given.get("page") == "fleet":
        return reverse("fleet:list")
    run = number(given.get("of"))
    return reverse("fleet:set_aside") + (f"?{urlencode({'run': run})}" if run else "")
