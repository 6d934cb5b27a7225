"""PipeDream's partition of an imported graph, compared with data parallelism and with one worker: rows and sentences.

Data parallelism is the same algorithm on the graph merged into a single layer, which cannot be cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from parallel_core.analysis.quantities import count_text, ratio_text, seconds_text, short_text
from parallel_core.plan.layer_graph import GraphError, GraphLayer, LayerGraph
from parallel_core.plan.network_levels import MAX_WORK, Level, candidates, check
from parallel_core.plan.pipedream import Form, Partition, Stage, partition
from parallel_core.searches import ProgressCallback, silent

AT_ONCE = 1.25e7
"""Most candidates that a page computes while it loads: 0.1 s to 0.3 s."""
_AS_FAST = 1.005
"""Smaller ratios are reported as equal."""
_LONGEST = 28
"""Characters of a layer's name in a row: descriptions hold all of a module's arguments."""
_WIDTHS = re.compile(r"(?:in_features=)?([0-9]+), (?:out_features=)?([0-9]+)\b")


@dataclass(frozen=True)
class Row:
    """One stage. `seconds`: its compute divided by its replicas; `sent`: bytes of outputs that later stages need;
    `parameters`: bytes."""

    layers: tuple[GraphLayer, ...]
    replicas: int
    seconds: float
    sent: float
    parameters: float

    @property
    def name(self) -> str:
        first, last = short(self.layers[0].name), short(self.layers[-1].name)
        return first if len(self.layers) == 1 else f"{first} to {last}"


def short(name: str) -> str:
    """A module's name without its arguments except the first two if these are its widths."""
    kind, _, arguments = name.partition("(")
    widths = _WIDTHS.match(arguments)
    text = f"{kind}({widths[1]}, {widths[2]})" if widths else kind.strip() or name
    return short_text(text, _LONGEST)


@dataclass(frozen=True)
class GraphPlan:
    """`found`: the partition of `graph` over `levels`; `together`: one stage on all workers, None if too large."""

    graph: LayerGraph
    levels: tuple[Level, ...]
    found: Partition
    together: Partition | None

    @property
    def alone(self) -> float:
        """Seconds of a micro-batch on one worker, if it had memory for the whole model."""
        return sum(layer.compute for layer in self.graph.layers)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row for each stage."""
        return tuple(self._row(stage) for stage in self.found.stages)

    def _row(self, stage: Stage) -> Row:
        own = tuple(self.graph.layers[n] for n in stage.layers)
        inside = set(stage.layers)
        handed_on = [n for n in stage.layers if any(m not in inside for m in self.graph.after[n])]
        return Row(
            own,
            stage.replicas,
            sum(layer.compute for layer in own) / stage.replicas,
            sum(self.graph.layers[n].activation for n in handed_on),
            sum(layer.parameters for layer in own),
        )

    def sentences(self) -> list[str]:
        """The partition and its speedup, a comparison with data parallelism, and the NOAM."""
        found, workers = self.found, self.found.workers
        on = f"{count_text(workers)} workers" if workers > 1 else "one worker"
        stages = f"{len(found.stages)} stage{'s' if len(found.stages) > 1 else ''} on {on}"
        gain = found.seconds and workers > 1
        speedup = f", {ratio_text(self.alone / found.seconds)} of one worker" if gain else ""
        first = f"{found.text}: {seconds_text(found.seconds)} a micro-batch with {stages}{speedup}."
        return [first, *self._beside(), f"NOAM is {found.noam}: so many micro-batches each input worker admits."]

    def _beside(self) -> list[str]:
        if self.found.workers == 1:
            return []
        if len(self.found.stages) == 1:
            return ["That is data parallelism alone: no pipeline is faster."]
        if self.together is None:
            return ["Data parallelism alone does not fit: every worker would hold all layers."]
        slower = self.together.seconds / self.found.seconds
        if slower < _AS_FAST:
            return ["Data parallelism alone is as fast."]
        return [f"Data parallelism alone takes {seconds_text(self.together.seconds)}, {ratio_text(slower)} as long."]


def takes_long(graph: LayerGraph, levels: Sequence[Level], memory: float | None = None) -> bool:
    """Whether a page should not wait for `plan_graph`. Raises GraphError for an invalid network."""
    check(levels)
    size = len(graph.states()) + 1, levels, len(graph.layers)
    refused = candidates(*size) > MAX_WORK  # at once
    return not refused and candidates(*size, limited=memory is not None) > AT_ONCE


def plan_graph(
    graph: LayerGraph,
    levels: Sequence[Level],
    form: Form,
    memory: float | None = None,
    on_progress: ProgressCallback = silent,
) -> GraphPlan:
    """PipeDream's partition of the graph, and data parallelism. Arguments and errors as `pipedream.partition`."""
    found = partition(graph, levels, form, memory, on_progress)
    layers = graph.layers
    whole = GraphLayer(
        "all layers",
        sum(layer.forward for layer in layers),
        sum(layer.backward for layer in layers),
        sum(layer.activation for layer in layers),
        sum(layer.parameters for layer in layers),
    )
    try:
        together = partition(LayerGraph.chain([whole]), levels, form, memory)
    except GraphError:
        together = None
    return GraphPlan(graph, tuple(levels), found, together)
