"""PipeDream's partition of an imported graph over a network (`plan.graph_plan`), as a question and an answer."""

from __future__ import annotations

from parallel_core.plan.graph_plan import plan_graph
from parallel_core.plan.layer_graph import read_graph
from parallel_core.plan.network_levels import Level
from parallel_core.plan.pipedream import Form, Partition
from parallel_core.searches import ProgressCallback, Value, silent


class Question(Value):
    """`text`: contents of a graph.txt; `levels`: of the network, innermost first; `memory`: bytes of a worker (None:
    unlimited)."""

    text: str
    levels: tuple[Level, ...]
    form: Form
    memory: float | None = None


class Answer(Value):
    """The partition found; `together`: all layers as one stage on all workers, None where that does not fit."""

    found: Partition
    together: Partition | None


def answer(question: Question, on_progress: ProgressCallback = silent) -> Answer:
    """Partitions the graph. Raises GraphError where nothing fits or the graph is too large."""
    plan = plan_graph(read_graph(question.text), question.levels, question.form, question.memory, on_progress)
    return Answer(found=plan.found, together=plan.together)
