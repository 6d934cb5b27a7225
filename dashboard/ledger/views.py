"""The Partition page, requests for profiles, and the record of predictions."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.guards import member_required
from dashboard.accounts.roles import may_change, may_submit
from dashboard.analyst.shown import unanswered
from dashboard.charts import layers
from dashboard.ledger import recalibration, records, selectors, services
from dashboard.ledger.alpa_part import Part
from dashboard.ledger.forms import CutForm, ProfileForm
from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.partition_page import Page
from dashboard.ledger.pending_profiles import asked
from dashboard.numbers import numbers
from dashboard.plans.forms import said
from dashboard.plans.tabs import TABS
from parallel_core.analysis.quantities import plural_text, sentence_text

SHOWN = 200
"""The most predictions in the record's table, newest first."""


@require_safe
@vary_on_headers("HX-Request")
def partition(request: HttpRequest) -> HttpResponse:
    """The Partition page for `?profile=` and its cuts; without one, for the newest profile."""
    newest = Profile.objects.filter(state=ProfileState.DONE).defer("table").first()
    given = request.GET.dict()
    form = CutForm({"profile": newest.pk if newest else "", **given})
    context: dict[str, Any] = {
        "tabs": TABS,
        "tab": "partition",
        "form": form,
        "profile_form": ProfileForm(),
        "may_ask": may_submit(request.user),
        **asked(request.user),
        "failed": selectors.last_failure(),
        "withdrawn": selectors.last_withdrawn(),
        "any": newest is not None,
    }
    if newest is not None and form.is_valid():
        context |= _page(form)
    page = "ledger/partition_result.html" if request.headers.get("HX-Request") else "ledger/partition.html"
    return render(request, page, context)


def _page(form: CutForm) -> dict[str, Any]:
    values = form.cleaned_data
    profile: Profile = values["profile"]
    try:
        page = Page(profile, values)
    except ValueError as error:
        form.add_error("cuts" if values["cuts"] or not values["replicas"] else "replicas", str(error))
        return {}
    source = f"measured on {profile.worker.name}, {profile.software}, all devices busy"
    samples = page.asked.samples
    form.show(samples, page.asked.workers)
    address, why_not = page.run()
    return {
        "page": page,
        "profile": profile,
        "sentences": page.sentences(),
        "stages": page.stages(),
        "charts": [
            layers.times(page.layers, plural_text(samples, "sample"), source),
            layers.sizes(page.table.sizes, plural_text(page.table.samples, "sample"), source),
        ],
        "run_address": address,
        "why_not": why_not,
        "record": records.time_record().sentence(),
        "legend": [(phase, phase) for phase in ("forward", "backward")],
    }


@require_safe
@vary_on_headers("HX-Request")
def alpa(request: HttpRequest) -> HttpResponse:
    """Alpa's plans for the profile, micro-batch and devices of the query: a part of the page that is loaded when it is
    opened."""
    form = CutForm(request.GET.dict())
    if not form.is_valid():
        return HttpResponse(said(form), "text/plain; charset=utf-8", 422)
    context: dict[str, Any] = {"tabs": TABS, "tab": "partition"}
    context["back"] = f"{reverse('ledger:partition')}?{request.GET.urlencode()}"
    try:
        asked = Page(form.cleaned_data["profile"], form.cleaned_data).asked
        part = Part(asked.profile, asked.samples, asked.workers, asked.form, request.user, asked.optimizer)
    except ValueError as error:
        context |= {"part": None, "why_not": sentence_text(str(error))}
    else:
        context |= _alpa(part, request.get_full_path(), context["back"], request.user)
    alone = not request.headers.get("HX-Request")
    return render(request, "ledger/alpa_page.html" if alone else "ledger/alpa.html", context)


def _alpa(part: Part, here: str, page: str, user: Any) -> dict[str, Any]:
    wait = unanswered(part.search, "Searching Alpa's plans", here, page, user)
    return {"wait": wait} if wait else {"part": part, "rows": part.rows()}


@require_safe
def waiting(request: HttpRequest) -> HttpResponse:
    """The profiles still waited for; reloads the page when their number differs from `?known=`.

    `?first` = as shown on a page that has no profile yet.
    """
    left = asked(request.user)
    known = request.GET.get("known", "")
    answer = render(request, "ledger/waiting.html", {**left, "first": "first" in request.GET})
    if known != str(len(left["waiting"])):
        answer["HX-Refresh"] = "true"
    return answer


@require_POST
@member_required
def profile(request: HttpRequest) -> HttpResponse:
    """Requests a profile of a model from a worker."""
    form = ProfileForm(request.POST)
    if not form.is_valid():
        messages.error(request, " ".join(map(str, form.non_field_errors())))
        return redirect("ledger:partition")
    worker = form.workers[form.cleaned_data["worker"]]
    asked = services.ask_profile(worker=worker, spec=form.specs[form.cleaned_data["model"]], user=request.user)
    messages.success(request, f"{worker.name} profiles it as soon as nothing runs there.")
    return redirect(f"{reverse('ledger:partition')}#profile-{asked.pk}")


@require_POST
@member_required
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Withdraws a requested profile; one that was answered meanwhile stays."""
    wanted = get_object_or_404(Profile.objects.select_related("worker").defer("table"), pk=pk)
    if services.withdraw_profile(wanted, request.user):
        messages.success(request, f"{wanted.worker.name} is no longer asked to profile {wanted.title}.")
    else:
        messages.info(request, f"{wanted} was answered before it could be withdrawn.")
    return redirect("fleet:list" if request.POST.get("page") == "fleet" else "ledger:partition")


@require_safe
def record(request: HttpRequest) -> HttpResponse:
    """The newest settled predictions next to what was measured."""
    rows, times = list(records.settled()[:SHOWN]), records.time_record()
    usable = recalibration.among(rows) if may_submit(request.user) else set()
    mine = {row.pk for row in rows if row.pk in usable and may_change(request.user, row.profile)}
    context = {
        "tabs": TABS,
        "tab": "record",
        "rows": rows,
        "total": records.settled().count(),
        "times": times,
        "both": records.of_both(times, records.memory_record()),
        "eligible": mine,
        "may_not": recalibration.MAY_NOT if usable - mine else "",
        "marked": set(numbers(",".join(request.GET.getlist("fit")))),
        "rule": recalibration.RULE,
        "recalibrated": recalibration.latest(request.user),
        "replays": records.replay_record(),
        "paced": records.paced_record(),
    }
    return render(request, "ledger/record.html", context)
