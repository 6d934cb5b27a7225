"""Links between hosts on the Fleet page: what is known of them, and the form to measure a pair."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.guards import member_required
from dashboard.accounts.roles import may_submit
from dashboard.fleet.selectors import reporting
from dashboard.ledger import host_links
from dashboard.runs import linking, services


@require_POST
@member_required
def measure(request: HttpRequest) -> HttpResponse:
    """Queues the run that measures the links of a pair, and redirects to its page."""
    first, second = (request.POST.get(name, "").strip()[:200] for name in ("first", "second"))
    try:
        run = linking.submit(owner=request.user, first=first, second=second)
    except services.Invalid as error:
        messages.error(request, " ".join(error.field_errors.values()))
        return redirect(address(first, second))
    return redirect("runs:page", run.pk)


def address(first: str = "", second: str = "") -> str:
    """The address of the form to measure a pair."""
    query = f"?{urlencode({'first': first, 'second': second})}" if first and second else ""
    return f"{reverse('fleet:list')}{query}#links"


def context(request: HttpRequest) -> dict[str, Any]:
    """The template context: what is known of the fleet's links, and the values of the form."""
    names = list(reporting().filter(across_hosts=True).order_by("name").values_list("name", flat=True))
    found = [linking.Known.of(row) for row in host_links.newest()]
    asked = [request.GET.get(key, "").replace("\x00", "").strip()[:200] for key in ("first", "second")]
    chosen = asked if all(asked) else linking.next_pair(names, found)
    hosts = linking.hosts(names, chosen)
    return {"links": found, "link_hosts": hosts, "chosen": chosen, "may_time": may_submit(request.user)}
