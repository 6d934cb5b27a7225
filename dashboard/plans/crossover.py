"""The Crossover page: when tensor parallelism is faster and when pipelines are, with this yard's runs as dots."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.charts import crossover as crossover_chart
from dashboard.charts.crossover import Dot
from dashboard.fields import Form, Number, WholeNumber
from dashboard.plans.views import answered, framed
from dashboard.runs.models import Run, State
from dashboard.runs.places import NOWHERE, Place, places_of
from parallel_core.analysis.disturbance import is_quiet
from parallel_core.analysis.quantities import count_text, listed_text, plural_text, significant
from parallel_core.plan.crossover import MOST, MOST_GBPS, MOST_TFLOPS, MOST_US, RANGES, Along, CrossoverCase, limits
from parallel_core.plan.strategy import family
from parallel_core.spec import RunSpec

RECENT = 300
"""How many of the newest succeeded runs are considered as dots."""
BANDWIDTH, FLOPS, ALPHA = 1e9, 1e12, 1e-6
"""Units of the form's fields in SI units."""


class CrossoverForm(Form):
    """All fields are in the query. A valid form has `case`."""

    devices = WholeNumber(label="Devices", min_value=2, max_value=MOST)
    hidden = WholeNumber(label="Hidden size", min_value=1, max_value=MOST)
    layers = WholeNumber(label="Layers", min_value=1, max_value=MOST)
    heads = WholeNumber(label="Heads", min_value=1, max_value=MOST, help_text="a tensor group divides them")
    seq = WholeNumber(label="Sequence length", min_value=1, max_value=MOST)
    batch = WholeNumber(label="Batch, sequences", min_value=1, max_value=MOST)
    micro_batches = WholeNumber(label="Micro-batches", min_value=1, max_value=MOST)
    flops = Number(label="TFLOP/s reached", max_value=MOST_TFLOPS, help_text="of one device")
    bandwidth = Number(label="Link, GB/s", max_value=MOST_GBPS, help_text="one way")
    alpha = Number(label="Latency, µs", min_value=0, max_value=MOST_US)

    DEFAULTS = {
        "devices": 8,
        "hidden": 4096,
        "layers": 32,
        "heads": 32,
        "seq": 2048,
        "batch": 64,
        "micro_batches": 16,
        "flops": 150,
        "bandwidth": 25,
        "alpha": 10,
    }
    case: CrossoverCase

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__({**self.DEFAULTS, **given}, auto_id="f-%s", use_required_attribute=False)

    def clean(self) -> dict[str, Any]:
        values = dict(super().clean() or {})
        if self.errors:
            return values
        units = {"flops": FLOPS, "bandwidth": BANDWIDTH, "alpha": ALPHA}
        self.case = CrossoverCase(**{name: value * units.get(name, 1) for name, value in values.items()})
        for field, message in self.case.problems().items():
            self.add_error(field, message)
        return values


@require_safe
@vary_on_headers("HX-Request")
def page(request: HttpRequest) -> HttpResponse:
    """Charts around one case, and the limits with unlimited devices."""
    form = CrossoverForm(request.GET.dict())
    context = framed("crossover", form=form, valid=form.is_valid())
    if context["valid"]:
        case = form.case
        context |= {
            "verdict": sentences(case),
            "charts": [crossover_chart.chart(case, along, dots(case, along)) for along in varied(case)],
            "limits": [(one.name, significant(one.speedup), one.formula) for one in limits(case)],
        }
    return answered(request, "crossover", context)


def varied(case: CrossoverCase) -> list[Along]:
    """The measures that can have another value: a batch of one sequence has one micro-batch."""
    return [along for along in RANGES if along != "micro_batches" or case.batch > 1]


def sentences(case: CrossoverCase) -> list[str]:
    """Which strategy is faster here and by how much, and where that changes."""
    both = {"TP": case.tensor(), "PP": case.pipeline()}
    fast, slow = sorted(both, key=lambda name: -both[name])
    first = (
        f"{significant(both[fast])} times one device with {fast} on {count_text(case.devices)} devices, "
        f"{significant(both[slow])} with {slow}."
    )
    flips: dict[str, list[str]] = {}
    for along in varied(case):
        who, where = crossover_chart.title(case, along).partition(";")[0].rstrip(".").split(" is faster ")
        flips.setdefault(who, []).append(where)
    where_each = (f"{who} is faster {listed_text(found)}" for who, found in flips.items())
    heads = plural_text(case.heads, "head")
    wide = [f"No tensor group of {count_text(case.devices)} divides {heads}."] if case.heads % case.devices else []
    return [first, f"{'; '.join(where_each)}.", *wide]


def dots(case: CrossoverCase, along: Along) -> list[Dot]:
    """Runs of the yard that use only tensor or only pipeline parallelism, with their speedup over the newest run on one
    device that did the same work, the whole batch at once, and is not known to have run on other machines.

    They equal the case in all but `along`; a tensor-parallel one may also take its batch at once, as such runs do. None
    for the bandwidth: the yard's links are what they are.
    """
    if along == "bandwidth":
        return []
    listed = _runs()
    places = places_of(listed)
    runs = [(run, RunSpec.stored(run.spec), places.get(run.pk, NOWHERE)) for run in listed]
    alone: dict[str, list[tuple[Place, float]]] = {}
    for run, spec, place in runs:
        if family(spec) == "single" and _plain(spec) and spec.parallel.micro_batches == 1:
            alone.setdefault(_work(spec), []).append((place, _step(run)))
    found = []
    for run, spec, place in runs:
        singles = (seconds for other, seconds in alone.get(_work(spec), ()) if not place.elsewhere(other))
        kind, single, own = family(spec), next(singles, None), _step(run)
        if kind in ("tp", "pp") and single and own and _plain(spec) and _like(spec, case, along):
            x = spec.model.hidden if along == "hidden" else spec.parallel.micro_batches
            parts = spec.parallel.micro_batches
            note = "" if along == "micro_batches" or parts == case.micro_batches else "its batch at once"
            found.append(Dot(run.name, kind, float(x), single / own, note))
    return found


def _runs() -> list[Run]:
    """The runs of a GPT that were timed, and are not known or suspected to be disturbed."""
    listed = Run.objects.filter(state=State.SUCCEEDED, injected=[]).order_by("-id")[:RECENT]
    timed = [run for run in listed if _step(run) and is_quiet(run.summary) and not run.shares_hosts]
    return [run for run in timed if run.spec.get("model", {}).get("kind", "gpt") == "gpt"]


def _step(run: Run) -> float:
    timed = (run.summary or {}).get("timed") or {}
    return float(timed.get("median") or 0.0)


def _work(spec: RunSpec) -> str:
    """The work of a step, which two runs must share to be held against each other."""
    train, model = spec.train, spec.model.model_dump(mode="json")
    return json.dumps([model, train.global_batch, train.precision, train.device])


def _plain(spec: RunSpec) -> bool:
    split = spec.parallel
    return split.recompute == "none" and not split.sequence and (split.pp == 1 or split.schedule in ("1f1b", "gpipe"))


def _like(spec: RunSpec, case: CrossoverCase, along: Along) -> bool:
    """Whether a run equals the case in all but `along`."""
    model, split = spec.model, spec.parallel
    same = split.world == case.devices and spec.train.global_batch == case.batch
    same = same and (model.layers, model.seq) == (case.layers, case.seq)
    if along == "hidden":
        return same and (split.micro_batches == case.micro_batches or split.micro_batches == split.pp == 1)
    return same and model.hidden == case.hidden
