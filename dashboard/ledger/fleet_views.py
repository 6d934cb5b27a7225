"""Plans for this fleet: the page, and the part of it that the analyst computes."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.analyst.shown import unanswered
from dashboard.ledger import records
from dashboard.ledger.fleet_page import FleetForm, FleetPage
from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.pending_profiles import asked
from dashboard.plans.tabs import TABS


def _form(request: HttpRequest) -> FleetForm:
    newest = Profile.objects.filter(state=ProfileState.DONE).defer("table").first()
    return FleetForm({"profile": newest.pk if newest else "", **request.GET.dict()})


@require_safe
@vary_on_headers("HX-Request")
def fleet(request: HttpRequest) -> HttpResponse:
    """The form, and its result as far as that has been computed; for a change of the form, that and its errors."""
    form = _form(request)
    any_profile = Profile.objects.filter(state=ProfileState.DONE).exists()
    context = {
        "tabs": TABS,
        "tab": "fleet",
        "form": form,
        "any": any_profile,
        **({} if any_profile else asked(request.user)),
    }
    page = "ledger/fleet_part.html" if request.headers.get("HX-Request") else "ledger/fleet.html"
    return render(request, page, context | (_found(form, request.user) if any_profile else {}))


@require_safe
@vary_on_headers("HX-Request")
def found(request: HttpRequest) -> HttpResponse:
    """The ranked splits for the form in the query, as a part of the page; a browser that opens it is redirected to the
    page."""
    form = _form(request)
    if not request.headers.get("HX-Request"):
        return redirect(f"{reverse('ledger:fleet')}?{request.GET.urlencode()}")
    context = {"form": form, **_found(form, request.user)}
    return render(request, "ledger/fleet_result.html", context, status=_status(form))


def _status(form: FleetForm) -> int:
    return 200 if form.is_valid() else 422


def _found(form: FleetForm, user: Any) -> dict[str, Any]:
    if not form.is_valid():
        return {}
    page = FleetPage(form.cleaned_data, user)
    part, whole = (f"{reverse(name)}?{page.query}" for name in ("ledger:fleet-found", "ledger:fleet"))
    wait = unanswered(page.search, "Simulating every split", part, whole, user)
    if wait:
        return {"page": page, "wait": wait}
    return {"page": page, "chart": page.chart(), "record": records.time_record().sentence()}
