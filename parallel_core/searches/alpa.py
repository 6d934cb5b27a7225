"""Alpa's two-level search for a profiled model on the devices of a host (`plan.alpa`), as a question and an answer."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from parallel_core.plan.alpa.costs import LayerCosts, Measured
from parallel_core.plan.alpa.inter import SEARCH_S, Mesh, Plan, Search
from parallel_core.plan.alpa.plans import OPTIMUM, OVERSIZE, Named, memory_beside, summary, with_alternatives
from parallel_core.plan.pipedream import Form
from parallel_core.profile.table import CostTable
from parallel_core.searches import ProgressCallback, Value, silent
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

MOST_DEVICES = 16
"""Most devices of a host; with more there are too many plans to search."""
MOST_RUNS = 6
"""How many of the plans that can run are returned, the fastest ones."""
_OURS = "Alpa, "


class Question(Value):
    """Plans with micro-batches of `samples` samples, on `devices` devices of one host with `memory` bytes for tensors
    each (None: unlimited). `form`: cost form of PipeDream's dynamic programme."""

    spec: RunSpec
    table: CostTable
    samples: int
    devices: int
    memory: float | None = None
    form: Form = "released"

    def costs(self) -> LayerCosts:
        """Returns the costs of layers. Raises ValueError where the profile has none for such micro-batches."""
        return LayerCosts(self.spec, Measured(self.table), self.samples)

    @property
    def micro_batches(self) -> int:
        return max(1, self.spec.train.global_batch // self.samples)


class Row(Value):
    """One plan. `meshes`: (dp, tp) of each stage; `seconds` per step by Alpa's equation 2, and `simulated` as a run;
    `memory`: bytes of its fullest stage.

    `why_not` explains why there is no plan (`seconds` None) or why it cannot run (`spec` None).
    """

    name: str
    cuts: tuple[int, ...] = ()
    meshes: tuple[tuple[int, int], ...] = ()
    seconds: float | None = None
    simulated: float | None = None
    memory: float | None = None
    why_not: str = ""
    spec: dict[str, Any] | None = None


class Answer(Value):
    """`rows`: the optimum, a faster one that does not fit, the fastest plans that can run, and the plans of others.
    `stages`: a line per stage of the first row. `runnable`: seconds of the best plan that can run.

    `unfinished`: '', or a sentence if there was no time to search all plans that fit. Then the first row is the
    fastest plan found, or the optimum that does not fit if none was found.
    """

    rows: tuple[Row, ...]
    stages: tuple[str, ...]
    runnable: float | None
    unfinished: str = ""


def answer(question: Question, on_progress: ProgressCallback = silent) -> Answer:
    """Searches both levels, with integer programmes for memory only during the first `inter.SEARCH_S`. Raises
    ValueError where the micro-batches cannot be distributed over the devices, or no plan fits their memory."""
    told = 0

    def searching(done: int, of: int) -> None:
        nonlocal told
        told = of
        on_progress(done, of + MOST_RUNS)  # rows follow

    costs, mesh = question.costs(), Mesh(1, question.devices, question.memory or inf)
    search = Search(costs, mesh, question.micro_batches, SEARCH_S, searching)
    found = with_alternatives(search, question.form)
    best = _first(found, search)
    even = [named for named in found if named.name.startswith(_OURS)]
    shown = [named for named in found if named not in even[MOST_RUNS:]]
    shown.sort(key=lambda named: named.plan is not best)
    rows = []
    for done, named in enumerate(shown):
        on_progress(told + done, told + len(shown))
        rows.append(_row(named, question.table))
    able = (named.plan.seconds for named in found if named.spec is not None and named.plan is not None)
    return Answer(
        rows=tuple(rows),
        stages=tuple(summary(best, costs.units)),
        runnable=min(able, default=None),
        unfinished="" if search.finished else next(named.why_not for named in found if named.name == OPTIMUM),
    )


def _first(found: Sequence[Named], search: Search) -> Plan:
    """The plan to show first. Raises ValueError as `answer` does."""
    oversize = next((named.plan for named in found if named.name == OVERSIZE), None)
    best = found[0].plan or (None if search.finished else oversize)
    if best is None and oversize is not None:
        raise ValueError(f"No plan fits: the fastest needs {memory_beside(oversize, search)} a device.")
    if best is None:
        raise ValueError(f"{search.mesh.devices} devices cannot share out these micro-batches.")
    return best


def _row(named: Named, table: CostTable) -> Row:
    plan, spec = named.plan, named.spec
    if plan is None:
        return Row(name=named.name, why_not=named.why_not)
    return Row(
        name=named.name,
        cuts=plan.cuts,
        meshes=tuple((stage.dp, stage.tp) for stage in plan.stages),
        seconds=plan.seconds,
        simulated=predict_step(spec, table).seconds if spec else None,
        memory=plan.memory,
        why_not=named.why_not,
        spec=spec.model_dump(mode="json", exclude_defaults=True) if spec else None,
    )
