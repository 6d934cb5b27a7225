"""Plans for this fleet: the page, and its part that takes a while."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.ledger import selectors
from dashboard.ledger.fleet_page import FleetForm, FleetPage
from dashboard.ledger.models import Profile, ProfileState
from dashboard.plans.tabs import TABS


def _form(request: HttpRequest) -> FleetForm:
    newest = Profile.objects.filter(state=ProfileState.DONE).first()
    return FleetForm({"profile": newest.pk if newest else "", **request.GET.dict()})


@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """The form; what it finds comes as a part."""
    form = _form(request)
    any_profile = Profile.objects.filter(state=ProfileState.DONE).exists()
    context = {
        "tabs": TABS,
        "tab": "fleet",
        "form": form,
        "any": any_profile,
        "valid": any_profile and form.is_valid(),
        "query": request.GET.urlencode(),
    }
    return render(request, "ledger/fleet.html", context)


@require_safe
def found(request: HttpRequest) -> HttpResponse:
    """The ranked splits of the address."""
    form = _form(request)
    if not form.is_valid():
        return render(request, "ledger/fleet_result.html", {"form": form}, status=422)
    page = FleetPage(form.cleaned_data)
    context = {"page": page, "chart": page.chart(), "record": selectors.time_record().sentence()}
    return render(request, "ledger/fleet_result.html", context)
