"""Orders searched for on the Schedules page, within the time that a page may take; and the order as a file or a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from parallel_core.plan.orders.problem import Problem
from parallel_core.plan.orders.search import FoundOrder, find
from parallel_core.schedule.ir import Kind, Schedule
from parallel_core.schedule.table import to_csv
from parallel_core.schedule.traits import CUSTOM, Shape
from parallel_core.simulate.schedule_preview import UNIT
from parallel_core.simulate.typed_stages import Stage, prices
from parallel_core.spec import ParallelSpec

SHAPES: dict[str, Shape] = {"found": "line", "found-v": "v"}
EFFORT = 100_000
"""Operations that a search may time: about a tenth of a second."""
MOST_OPERATIONS = 3_000
"""The most operations of a schedule to search for: more would take too long for a page."""
MOST_ADDRESS = 3_000
"""The most characters of a program in a query."""


def search(name: str, asked: dict[str, Any]) -> FoundOrder:
    """Searches for an order. `asked` = the form's values. Raises OrderError."""
    if asked["stages"]:
        return find(_of_stages(asked["stages"], asked), EFFORT)
    times = tuple(asked[field] * UNIT for field in ("forward", "grad", "weight"))
    limit = asked["keep"] or asked["p"]
    problem = Problem.uniform(asked["p"], asked["m"], times, asked["message"] * UNIT, limit, SHAPES[name])
    return find(problem, EFFORT)


def _of_stages(stages: Sequence[Stage], asked: dict[str, Any]) -> Problem:
    """The problem for typed stages on one device each, all with a backward."""
    costs, count = prices(stages), len(stages)
    forward, grad, weight, whole = (
        tuple(costs.compute[i, kind] for i in range(count)) for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)
    )
    message, same = (round(asked["message"] * UNIT),) * (count - 1), (1.0,) * count
    limit = (float(asked["keep"] or count),) * count
    return Problem(asked["m"], tuple(range(count)), forward, grad, weight, whole, message, same, same, limit)


def schedule_of(name: str, found: FoundOrder) -> Schedule:
    return replace(found.schedule, name=name)


def address(made: Schedule) -> str:
    """The address of New run with this order; '' if no run can have it, or it is too long for a query."""
    program = to_csv(made)
    if made.sync != "flush" or made.pipeline_ranks < 2 or len(program) > MOST_ADDRESS or "OVERLAP" in program:
        return ""
    m, pp = made.micro_batches, made.pipeline_ranks
    split = ParallelSpec.model_validate({"pp": pp, "schedule": CUSTOM, "micro_batches": m, "program": program})
    layers = max(4, made.stages)
    spec = {
        "model": {"layers": layers},
        "parallel": split.model_dump(exclude_defaults=True),
        "train": {"global_batch": 4 * m},
    }
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(spec)})}"
