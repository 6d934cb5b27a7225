"""Deletes runs in the browser, after a page that says what will go, or only what was traced of them; for one run or
the ticked ones of the list."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.guards import member_required
from dashboard.numbers import number
from dashboard.runs import removal
from dashboard.runs.browse.list_views import back_to, none_of, ticked
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.runs.stored import space_sentence
from dashboard.runs.tracing import thinning
from parallel_core.analysis.quantities import plural_text


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def delete(request: HttpRequest) -> HttpResponse:
    """GET (`?runs=1&runs=2`) asks for confirmation, and says why some runs stay; POST deletes the others. `from=run`:
    who keeps the run returns to its page, from which they came."""
    wanted = ticked(request.POST if request.method == "POST" else request.GET)
    going = removal.look(Run.objects.filter(pk__in=wanted), request.user)
    back = back_to(request)
    if not going.runs and not going.staying:
        messages.info(request, none_of(wanted))
        return redirect(back)
    if request.method == "POST" and going.runs:
        try:
            count = removal.delete(runs=[run.pk for run in going.runs], user=request.user)
        except Invalid as error:  # a run changed since the check above
            messages.error(request, " ".join(error.field_errors.values()))
            return redirect(request.get_full_path())
        messages.success(request, f"{plural_text(count, 'run')} {'was' if count == 1 else 'were'} deleted.")
        return redirect(back)
    one = request.GET.get("from") == "run" and len(wanted) == 1
    stays = reverse("runs:page", args=wanted) if one else back
    context = {"going": going, "back": stays, "one": one, "checkpoints": removal.checkpoints_sentence(going.runs)}
    context["space"] = space_sentence(Run.objects.filter(pk__in=[run.pk for run in going.runs]))
    context["thinning"] = thinning.look(Run.objects.filter(pk__in=wanted), request.user)
    return render(request, "runs/delete.html", context)


@require_POST
@member_required
def free_space(request: HttpRequest) -> HttpResponse:
    """Drops most of what was traced of the given runs, those that it can be dropped of now, and keeps their numbers."""
    wanted = ticked(request.POST)
    back = _behind(request, wanted)
    going = thinning.look(Run.objects.filter(pk__in=wanted), request.user)
    try:
        profiles = "profiles" in request.POST
        count = thinning.thin(runs=[run.pk for run in going.runs], user=request.user, profiles=profiles)
    except Invalid as error:  # a run changed since the check above
        messages.error(request, " ".join(error.field_errors.values()))
        return redirect(back)
    if count:
        messages.success(request, f"The space of {plural_text(count, 'run')} is being freed; the numbers stay.")
    else:
        messages.info(request, "There is nothing to drop of these runs.")
    return redirect(back)


def _behind(request: HttpRequest, runs: Sequence[int]) -> str:
    """The page from which the space of these runs was to be freed: that of a study, of the one run, or the list."""
    if (study := number(request.POST.get("study"))) is not None:
        return reverse("studies:page", args=(study,))
    return reverse("runs:page", args=(runs[0],)) if len(runs) == 1 else back_to(request)
