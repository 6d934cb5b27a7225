"""Views that partition a layer graph from PipeDream's profiler; each answer has an address of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.roles import may_submit
from dashboard.analyst.services import ask
from dashboard.analyst.shown import unanswered
from dashboard.charts import layers
from dashboard.charts.chart import Chart
from dashboard.fields import Choice, Form, Number, WholeNumber
from dashboard.ledger import graphs
from dashboard.ledger.models import Graph
from dashboard.plans.tabs import TABS
from parallel_core.plan.graph_plan import GraphPlan, plan_graph, short, takes_long
from parallel_core.plan.layer_graph import MAX_TEXT, GraphError, GraphLayer, LayerGraph, read_graph
from parallel_core.plan.network_levels import MAX_WORKERS, Level
from parallel_core.profile.table import LayerBytes
from parallel_core.searches.partition import Answer, Question

GB, GIB = 1e9, 2.0**30
NO_ROOM = (
    "A partition of this size is searched in the background, and its graph kept meanwhile. "
    f"{graphs.MOST_KEPT} graphs are kept already, and a viewer's takes the place of none. "
    "Use fewer workers or one group, or ask a member to send it."
)
DRAWN = 40
"""How many layers the charts show: those with the longest compute time."""


class NetworkForm(Form):
    """The network of workers that a graph is partitioned over."""

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
        """Requires the bandwidth between groups if there are several."""
        values = dict(super().clean() or {})
        if not self.errors and (values["groups"] or 1) > 1 and not values["outer"]:
            self.add_error("outer", f"{values['groups']} groups need the bandwidth between them.")
        return values

    @property
    def levels(self) -> list[Level]:
        """The levels of the network, innermost first."""
        given = self.cleaned_data
        inner = Level(given["workers"], given["bandwidth"] * GB)
        return [inner, Level(given["groups"], given["outer"] * GB)] if (given["groups"] or 1) > 1 else [inner]

    def plan(self, text: str | None = None) -> GraphPlan | Question | None:
        """The plan of the graph `text` (None: the form's own text), or the question for the analyst if it takes long.

        None if something is wrong; the error is then at its field.
        """
        if not self.is_valid():
            return None
        given, field = self.cleaned_data, "text"
        memory = given["memory"] and given["memory"] * GIB
        try:
            graph = read_graph(given["text"] if text is None else text)
            field = "memory" if memory else "workers"
            if takes_long(graph, self.levels, memory):
                text = given["text"] if text is None else text
                return Question(text=text, levels=tuple(self.levels), form=given["form"], memory=memory)
            return plan_graph(graph, self.levels, given["form"], memory)
        except GraphError as error:
            self.add_error(field if field in self.fields else None, str(error))
            return None

    @property
    def query(self) -> str:
        """The query string with the network of a valid form."""
        names = [name for name in NetworkForm.base_fields if self.cleaned_data[name] not in (None, "")]
        return urlencode({name: self[name].value() for name in names})


class _Text(forms.CharField):
    """A field without validators: the reader of graphs reports errors, with their line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.validators = []


class GraphForm(NetworkForm):
    """The network, and the text of a graph."""

    text = _Text(
        label="The file's text",
        strip=False,
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        help_text="lines node1 -- name -- forward_compute_time=ms, …, then edges node1 -- node2",
        error_messages={"required": "Choose a graph.txt, or paste its text."},
    )

    def clean_text(self) -> str:
        """Normalises line ends: a pasted text has others than the file it came from, but is the same graph."""
        return "\n".join(self.cleaned_data["text"].splitlines())


@require_http_methods(["GET", "HEAD", "POST"])
def graph(request: HttpRequest) -> HttpResponse:
    """The form. Stores a posted graph and redirects to its answer; a viewer's graph is stored only if its answer takes
    long, else it is answered here."""
    if request.method != "POST":
        return _page(request, GraphForm(), {})
    form = GraphForm(_given(request))
    plan = form.plan()
    kept = _kept(form.cleaned_data["text"], plan, request.user) if plan is not None else None
    if kept is not None:
        return redirect(f"{reverse('ledger:graph-answer', args=[kept.sha256])}?{form.query}")
    if isinstance(plan, Question):
        form.add_error(None, NO_ROOM)
    if not isinstance(plan, GraphPlan):
        return _page(request, form, {"refused": _of_the_file(request, form)}, status=422)
    return _page(request, form, _shown(plan))


def _kept(text: str, plan: GraphPlan | Question, user: Any) -> Graph | None:
    if may_submit(user):
        return graphs.keep(text, user)
    return graphs.lend(text, user) if isinstance(plan, Question) else None


@require_safe
def answer(request: HttpRequest, sha256: str) -> HttpResponse:
    """The page with the partition of a stored graph; its network is in the address."""
    form, context = _of_kept(request, sha256)
    return _page(request, form, {"kept": True, **context})


@require_safe
@vary_on_headers("HX-Request")
def found(request: HttpRequest, sha256: str) -> HttpResponse:
    """The same without the form, for htmx; other requests are redirected to the page."""
    if not request.headers.get("HX-Request"):
        return redirect(f"{reverse('ledger:graph-answer', args=[sha256])}?{request.GET.urlencode()}")
    return render(request, "ledger/graph_result.html", _of_kept(request, sha256)[1])


def _of_kept(request: HttpRequest, sha256: str) -> tuple[NetworkForm, dict[str, Any]]:
    """The form filled from the address, and the context with the answer or its progress. Raises Http404 if no such
    graph is stored."""
    text = graphs.text_of(sha256)
    if text is None:
        raise Http404("no such graph is kept")
    initial = {name: field.initial for name, field in NetworkForm.base_fields.items() if field.initial is not None}
    form = NetworkForm({**initial, "form": "released", **request.GET.dict()})
    plan = form.plan(text)
    if isinstance(plan, Question):
        return form, _searched(plan, sha256, form.query, request.user)
    return form, _shown(plan) if plan else {}


def _searched(question: Question, sha256: str, query: str, user: Any) -> dict[str, Any]:
    """The template context with the analyst's answer, or with its progress."""
    about = question.model_dump(mode="json", exclude={"text"})
    known = {"graph": sha256, **about}
    search = ask("partition", known, lambda: question.model_dump(mode="json"), asker=user)
    part, page = (f"{reverse(f'ledger:{name}', args=[sha256])}?{query}" for name in ("graph-found", "graph-answer"))
    if wait := unanswered(search, "Partitioning the graph", part, page, user):
        return {"wait": wait}
    answered = Answer.model_validate(search.answer)
    return _shown(GraphPlan(read_graph(question.text), question.levels, answered.found, answered.together))


def _shown(plan: GraphPlan) -> dict[str, Any]:
    most = max(row.seconds for row in plan.rows)
    return {
        "plan": plan,
        "charts": _charts(plan.graph),
        "legend": [(phase, phase) for phase in ("forward", "backward")],
        "rows": [(row, round(100 * row.seconds / (most or 1.0), 2), row.seconds == most) for row in plan.rows],
    }


def _page(request: HttpRequest, form: NetworkForm, context: dict[str, Any], status: int = 200) -> HttpResponse:
    frame = {"tabs": TABS, "tab": "partition", "form": form}
    return render(request, "ledger/graph.html", frame | context, status=status)


def _of_the_file(request: HttpRequest, form: GraphForm) -> list[str]:
    """Removes and returns the errors of an uploaded file, to show at the file's field; [] if none was uploaded.

    Also removes its text from the form: it may have megabytes, which a browser takes a minute to lay out.
    """
    if "file" not in request.FILES:
        return []
    form.data = {name: form.data[name] for name in form.data} | {"text": ""}  # `**` of a QueryDict gives lists
    return [str(said) for said in form.errors.pop("text", [])]


def _given(request: HttpRequest) -> QueryDict:
    """The posted data, with the content of an uploaded file in place of `text`."""
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
    """The bytes of a layer. A profiled module saves its output for the backward."""
    kept = int(layer.activation)
    return LayerBytes(unit=layer.name, parameters=int(layer.parameters), saved=kept, boundary=kept)
