"""The Inference page: what serving a model takes on a cluster. Nothing is stored; all fields are in the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.charts import serving as serving_chart
from dashboard.fields import Number, WholeNumber
from dashboard.plans.forms import SetupForm
from dashboard.plans.views import answered, framed
from parallel_core.analysis.quantities import (
    bytes_beside,
    bytes_text,
    figure_text,
    large_text,
    percent_text,
    seconds_text,
)
from parallel_core.plan.cluster.inference import MOST_TOKENS, Ask, Served, cache_bytes, serve

LISTED = 12


class ServingForm(SetupForm):
    """A valid form has `served` as well."""

    prompt = WholeNumber(label="Prompt, tokens", min_value=1, max_value=MOST_TOKENS)
    output = WholeNumber(label="Output, tokens", min_value=1, max_value=MOST_TOKENS)
    limit = Number(
        label="At most, ms a token", min_value=0.001, max_value=1e6, required=False, help_text="empty: no limit"
    )

    batch = None  # type: ignore[assignment]  # the batch is a result here; None removes the inherited field
    DEFAULTS = {"model": "llama-70b", "cluster": "selene", "devices": 8, "prompt": 1024, "output": 256}
    served: Served

    def clean(self) -> dict[str, Any]:
        values = super().clean()
        if not self.errors:
            self.served = serve(self.setup.job.model, self.setup.cluster, Ask(values["prompt"], values["output"]))
        return values

    @property
    def first(self) -> list[forms.BoundField]:
        return self.group("model", "cluster", "devices", "prompt", "output", "limit")


@dataclass(frozen=True)
class Row:
    """A way to serve, as the table shows it."""

    label: str
    prefill: str
    token: str
    latency: str
    throughput: str
    memory: str
    cache: str
    chosen: bool


@require_safe
@vary_on_headers("HX-Request")
def page(request: HttpRequest) -> HttpResponse:
    """The best way within the limit, and all those that no other beats."""
    form = ServingForm(request.GET.dict())
    context = framed("serving", form=form, valid=form.is_valid())
    if context["valid"]:
        made = form.served
        limit = form.cleaned_data["limit"]
        best = made.best(limit / 1e3 if limit else None)
        context |= {
            "verdict": sentences(form, best),
            "rows": rows(made, best),
            "chart": serving_chart.chart(made) if made.fits.any() else None,
        }
    return answered(request, "serving", context)


def sentences(form: ServingForm, best: int | None) -> list[str]:
    """What the best way achieves, and how much memory a sequence and the cache take."""
    made, model, ask = form.served, form.setup.job.model, form.served.ask
    kept = f"Each sequence keeps {bytes_text(cache_bytes(model, ask.prompt + ask.output))} of keys and values."
    if best is None:
        if not made.fits.any():
            return [_none_fits(made), kept]
        quick = seconds_text(float(made.token[made.front()[0]]))
        return [f"No way is that quick: the quickest token takes {quick}.", kept]
    rate = figure_text(float(made.throughput[best]))
    token = seconds_text(float(made.token[best]))
    tokens = f"{rate} token{'' if rate == '1' else 's'} a second"
    first = f"{tokens}, prefill included, at {token} a token: {made.label(best)}."
    share = float(made.cache[best] / made.cluster.capacity)
    return [first, *_nearly(made, best), f"{kept} The cache fills {percent_text(share)} of a device."]


def _nearly(made: Served, best: int) -> list[str]:
    """The way that answers much sooner and is nearly as fast, if there is one."""
    way = made.nearly(best)
    if way is None:
        return []
    rate = percent_text(float(made.throughput[way] / made.throughput[best]))
    return [f"{rate} of that rate comes at {seconds_text(float(made.token[way]))} a token: {made.label(way)}."]


def _none_fits(made: Served) -> str:
    """How much the weights, or weights and cache where those alone would fit, take of a device at least."""
    room, weights = made.cluster.capacity, float(made.weights.min())
    least = int((made.weights + made.cache).argmin())
    what = "the weights alone take" if weights > room else "weights and cache take at least"
    taken = weights if weights > room else float(made.weights[least] + made.cache[least])
    return f"0 ways fit: {what} {bytes_beside(taken, room)} of {bytes_beside(room, taken)} a device."


def rows(made: Served, best: int | None) -> list[Row]:
    """Ways that no other beats in both latency and throughput, lowest latency first, and the best one."""
    front = made.front()
    every = max(1, -(-len(front) // LISTED))
    shown = sorted({*front[::every], *front[-1:], *([] if best is None else [best])}, key=lambda i: made.token[i])
    return [
        Row(
            made.label(i),
            seconds_text(float(made.prefill[i]), zeros=True),
            seconds_text(float(made.token[i]), zeros=True),
            seconds_text(float(made.latency[i]), zeros=True),
            large_text(float(made.throughput[i]), zeros=True),
            bytes_text(float(made.weights[i] + made.cache[i]), zeros=True),
            bytes_text(float(made.cache[i]), zeros=True),
            i == best,
        )
        for i in shown
    ]
