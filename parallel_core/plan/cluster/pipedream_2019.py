"""PipeDream's Table 1 (image classification) predicted by its own algorithm: speedup over data parallelism.

Each row is predicted by the partition of `plan.pipedream` under the paper's cost (Narayanan et al. 2019, section 3.1),
from the sizes of the model's layers, one measured time of the whole model, and the links. The time is divided over the
layers in proportion to their multiply-adds. Nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from parallel_core.plan.cluster.accuracy import Row
from parallel_core.plan.cluster.store import rows, table
from parallel_core.plan.graph_plan import GraphPlan, plan_graph
from parallel_core.plan.layer_graph import GraphLayer, LayerGraph
from parallel_core.plan.network_levels import Level

NAME = "pipedream_2019"
_BYTES = 4
"""fp32."""
_FORWARD = 1 / 3
"""Share of a layer's time: its backward computes twice as much."""


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """`row`: the speedup over data parallelism; `published` and `found`: replicas of each stage, as in `15-1`."""

    row: Row
    published: str
    found: str

    @property
    def same_kind(self) -> bool:
        """Whether both are data parallelism alone, or both are pipelines."""
        return ("-" in self.published) == ("-" in self.found)


@lru_cache(maxsize=1)
def speedups() -> tuple[SpeedupRow, ...]:
    """The rows of the table."""
    source = table(NAME)["source"]
    out = []
    for line in rows(NAME):
        plan = _plan(line["model"], table(NAME)["clusters"][line["cluster"]])
        assert plan.together is not None, "without a limit of memory all fits"
        key = f"{line['model']}, cluster {line['cluster']}: {line['config']}, found {plan.found.text}"
        row = Row(key, line["speedup"], plan.together.seconds / plan.found.seconds, "times DP", source)
        out.append(SpeedupRow(row, line["config"], plan.found.text))
    return tuple(out)


def _plan(model: str, cluster: dict[str, Any]) -> GraphPlan:
    inside = Level(cluster["per_host"], cluster["host_GBps"] * 1e9)
    return plan_graph(_graph(model), [inside, Level(cluster["hosts"], cluster["network_GBps"] * 1e9)], "paper")


def _graph(model: str) -> LayerGraph:
    known = table(NAME)["models"][model]
    seconds = known["ms_a_sample"] / 1e3 * known["samples"]
    work = sum(layer[1] for layer in known["layers"])
    layers = []
    for name, own, outputs, parameters in known["layers"]:
        took, sent = seconds * own / work, _BYTES * known["samples"] * outputs
        layers.append(GraphLayer(name, _FORWARD * took, (1 - _FORWARD) * took, sent, _BYTES * parameters))
    return LayerGraph.chain(layers)
