"""Actions on searches: ask again, stop."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from dashboard.accounts.guards import member_required
from dashboard.analyst import services
from dashboard.analyst.models import Search


@require_POST
@member_required
def again(request: HttpRequest, pk: int) -> HttpResponse:
    """Queues a failed search again."""
    if why_not := services.again(search=get_object_or_404(Search, pk=pk), user=request.user):
        messages.error(request, why_not)
    return _back(request)


@require_POST
def stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stops a search, for everyone who waits for it."""
    services.stop(search=get_object_or_404(Search, pk=pk), user=request.user)
    return _back(request)


def _back(request: HttpRequest) -> HttpResponse:
    """Redirects to the page with the button."""
    asked = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(asked, {request.get_host()}, require_https=request.is_secure())
    # not `redirect(asked)`, which takes what has no slash for the name of a view
    return HttpResponseRedirect(asked) if safe and asked.startswith("/") else redirect("plans:page")
