"""A graph of layers from PipeDream's profiler, partitioned at once. Nothing is kept: the answer repeats what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from dashboard.charts import layers
from dashboard.charts.chart import Chart
from dashboard.fields import Choice, Number, WholeNumber
from dashboard.plans.tabs import TABS
from parallel_core.plan.graph_plan import GraphPlan, plan_graph, short
from parallel_core.plan.layer_graph import MAX_TEXT, GraphError, GraphLayer, LayerGraph, read_graph
from parallel_core.plan.pipedream import MAX_WORKERS, Level
from parallel_core.profile.table import LayerBytes

GB, GIB = 1e9, 2.0**30
DRAWN = 40
"""Layers in the charts: those that take most."""


class GraphForm(forms.Form):
    """The text of a graph, and the network it is to be spread over."""

    text = forms.CharField(
        label="The file's text",
        max_length=MAX_TEXT,
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        help_text="lines node1 -- name -- forward_compute_time=ms, …, then edges node1 -- node2",
        error_messages={"required": "Choose a graph.txt, or paste its text."},
    )
    workers = WholeNumber(label="Workers", initial=4, min_value=1, max_value=MAX_WORKERS)
    bandwidth = Number(label="Between them, GB/s", initial=1, min_value=1e-6, max_value=1e6)
    groups = WholeNumber(
        label="Groups of these", min_value=1, max_value=MAX_WORKERS, required=False, help_text="such as hosts; optional"
    )
    outer = Number(label="Between groups, GB/s", min_value=1e-6, max_value=1e6, required=False)
    memory = Number(
        label="Memory of a worker, GiB", min_value=1e-6, max_value=1e6, required=False, help_text="empty: enough"
    )
    form = Choice(label="Cost form", choices=[("released", "the tool's sum"), ("paper", "the paper's maximum")])

    def clean(self) -> dict[str, Any]:
        """Groups and the bandwidth between them come together."""
        values = dict(super().clean() or {})
        if not self.errors and (values["groups"] or 1) > 1 and not values["outer"]:
            self.add_error("outer", f"{values['groups']} groups need the bandwidth between them.")
        return values

    @property
    def levels(self) -> list[Level]:
        """Innermost first."""
        given = self.cleaned_data
        inner = Level(given["workers"], given["bandwidth"] * GB)
        return [inner, Level(given["groups"], given["outer"] * GB)] if (given["groups"] or 1) > 1 else [inner]

    def plan(self) -> GraphPlan | None:
        """None where something is wrong, which then stands at its field."""
        if not self.is_valid():
            return None
        memory, field = self.cleaned_data["memory"], "text"
        try:
            graph = read_graph(self.cleaned_data["text"])
            field = "memory" if memory else "workers"
            return plan_graph(graph, self.levels, self.cleaned_data["form"], memory and memory * GIB)
        except GraphError as error:
            self.add_error(field, str(error))
            return None


@require_http_methods(["GET", "HEAD", "POST"])
def graph(request: HttpRequest) -> HttpResponse:
    """The form; of a graph that was sent, its partition."""
    form = GraphForm(_given(request)) if request.method == "POST" else GraphForm()
    plan = form.plan() if form.is_bound else None
    context: dict[str, Any] = {"tabs": TABS, "tab": "partition", "form": form, "plan": plan}
    if plan is not None:
        most = max(row.seconds for row in plan.rows)
        context |= {
            "charts": _charts(plan.graph),
            "legend": [(phase, phase) for phase in ("forward", "backward")],
            "rows": [(row, round(100 * row.seconds / (most or 1.0), 2), row.seconds == most) for row in plan.rows],
        }
    return render(request, "ledger/graph.html", context, status=422 if form.is_bound and plan is None else 200)


def _given(request: HttpRequest) -> QueryDict:
    """What was sent; a file's text stands for the text."""
    data, file = request.POST.copy(), request.FILES.get("file")
    if file is not None:
        data["text"] = file.read(MAX_TEXT + 1).decode("utf-8", "replace")
    return data


def _charts(graph: LayerGraph) -> list[Chart]:
    drawn = sorted(range(len(graph.layers)), key=lambda n: -graph.layers[n].compute)[:DRAWN]
    shown = [_joined(short(graph.layers[n].name), [graph.layers[n]]) for n in sorted(drawn)]
    rest = [layer for n, layer in enumerate(graph.layers) if n not in set(drawn)]
    source, of = "the file's own times and sizes", "a micro-batch"
    others = _joined(f"{len(rest)} others", rest) if rest else None
    if others:
        source += f"; {len(shown)} of {len(graph.layers)} layers, those that take most"
    sizes = [_bytes(layer) for layer in (*shown, *([others] if others else []))]
    return [layers.times(shown, of, source, others), layers.sizes(sizes, of, source)]


def _joined(name: str, own: Sequence[GraphLayer]) -> GraphLayer:
    sums = (sum(getattr(layer, of) for layer in own) for of in ("forward", "backward", "activation", "parameters"))
    return GraphLayer(name, *sums)


def _bytes(layer: GraphLayer) -> LayerBytes:
    """A profiled module keeps its output."""
    kept = int(layer.activation)
    return LayerBytes(unit=layer.name, parameters=int(layer.parameters), saved=kept, boundary=kept)
