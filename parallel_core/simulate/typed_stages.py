"""Pipeline stages typed by a user, one a line: `name, forward, backward, replicas`, simulated under any schedule.

Times are units of one micro-batch on one replica. A missing backward takes twice the forward (two products instead of
one, Narayanan et al. 2021b, section 5.1); `forward only` marks a stage that needs none (frozen, or inference) and keeps
no activations. A stage with r replicas works on r micro-batches at once, dealt out to them in turn (1F1B-RR: Narayanan
et al. 2019, section 3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, lcm

from parallel_core import schedule
from parallel_core.schedule import round_robin
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.traits import CUSTOM, TRAITS, flushes
from parallel_core.simulate.costs import Costs
from parallel_core.simulate.schedule_preview import UNIT, SchedulePreview, preview_at

MOST_STAGES = 32
MOST_REPLICAS = 32
MOST_TIME = 1000
MOST_NAME = 24
FORWARD_ONLY = ("forward only", "forward-only", "-", "–", "—")
FIELDS = ("name", "forward", "backward", "replicas")
_AHEAD: dict[str, Callable[[int], int]] = {
    "naive": lambda micro_batches: 1,
    "gpipe": lambda micro_batches: micro_batches,
}
"""Schedules that `round_robin` can make beside those with that trait: micro-batches of a step -> those under way."""


class StagesError(ValueError):
    """The text is not a valid pipeline; the message names the line and the field."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`backward` is None for a forward-only stage. Times in units of one micro-batch on one replica."""

    name: str
    forward: float
    backward: float | None
    replicas: int = 1
    line: int = 0

    @property
    def pace(self) -> float:
        """Units between two micro-batches that leave the stage, with all its replicas busy."""
        return (self.forward + (self.backward or 0)) / self.replicas


class _Prices(Costs):
    """Costs of typed stages: the message that ends a micro-batch on a stage without backward takes no time."""

    def latency(self, op: Op) -> int:
        silent = op.kind is Kind.SEND_GRAD and self.compute.get((op.stage - 1, Kind.BW)) is None
        return 0 if silent else self.message


def read(text: str) -> tuple[Stage, ...]:
    """The stages of `text`, empty lines left out. Raises StagesError."""
    stages = [_stage(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not stages:
        raise StagesError("Type at least one stage, such as: encoder, 1, 2, 1.")
    if len(stages) > MOST_STAGES:
        raise StagesError(f"Line {stages[MOST_STAGES].line}: {len(stages)} stages are too many; use {MOST_STAGES}.")
    names: dict[str, int] = {}
    for stage in stages:
        if stage.name in names:
            before = names[stage.name]
            raise StagesError(f"Line {stage.line}, name: {stage.name} is the stage of line {before}; use another name.")
        names[stage.name] = stage.line
    _check_gradients(stages)
    return tuple(stages)


def names(stages: Sequence[Stage]) -> list[str]:
    """Schedules that these stages can have: none with chunks, since a stage has its own devices, and of stages with
    replicas only those that `order` can make."""
    replicated = any(stage.replicas > 1 for stage in stages)
    return [
        name
        for name, traits in TRAITS.items()
        if traits.shape == "line" and name != CUSTOM and (not replicated or traits.round_robin or name in _AHEAD)
    ]


def wrong_count(name: str, stages: Sequence[Stage], micro_batches: int) -> str:
    """Why a step of so many micro-batches is not possible under schedule `name`, with a number that is; '' where it is.

    Without a flush all replicas of a stage need equally many, else one of them would fall behind with every step.
    """
    replicas = [stage.replicas for stage in stages]
    least = round_robin.least_micro_batches(name, replicas)
    if micro_batches < least:
        return f"{least} or more are needed for {sum(replicas)} devices."
    every = 1 if flushes(name) else lcm(*replicas)
    if micro_batches % every:
        return f"replicas need equal shares where nothing flushes; use {-(-micro_batches // every) * every}."
    return ""


def order(name: str, replicas: Sequence[int], micro_batches: int, steps: int = 1) -> Schedule:
    """Compute operations in the order of schedule `name`, for stages with these numbers of replicas.

    Raises ValueError for fewer micro-batches than replicas, or if `name` is not among `names`.
    """
    if max(replicas) == 1:
        return schedule.compute_only(name, len(replicas), micro_batches, steps=steps)
    ahead = _AHEAD[name](micro_batches) if name in _AHEAD else None
    return round_robin.compute_only(name, replicas, micro_batches, steps, ahead)


def typed_preview(name: str, stages: Sequence[Stage], micro_batches: int, message: float = 0) -> SchedulePreview:
    """One step of these stages, `message` units from stage to stage; without a flush, a step of the full pipeline."""
    replicas, steps = [stage.replicas for stage in stages], steps_of(name, stages, micro_batches)
    return preview_at(order(name, replicas, micro_batches, steps), prices(stages, message), steps, silent(stages))


def steps_of(name: str, stages: Sequence[Stage], micro_batches: int) -> int:
    """Steps to simulate for one full one: without a flush also those that fill and drain the pipeline."""
    devices = sum(stage.replicas for stage in stages)
    return 1 if flushes(name) or devices == 1 else 2 * -(-devices // micro_batches) + 3


def silent(stages: Sequence[Stage]) -> frozenset[int]:
    """Stages without a backward."""
    return frozenset(i for i, stage in enumerate(stages) if stage.backward is None)


def prices(stages: Sequence[Stage], message: float = 0) -> Costs:
    """Costs in ns; a schedule that splits the backward gets half of it for the input and half for the weights."""
    table = {}
    for i, stage in enumerate(stages):
        table[i, Kind.F] = round(stage.forward * UNIT)
        if stage.backward is not None:
            whole = round(stage.backward * UNIT)
            table |= {(i, Kind.BW): whole, (i, Kind.B): whole // 2, (i, Kind.W): whole - whole // 2}
    return _Prices(table, round(message * UNIT))


def _stage(number: int, line: str) -> Stage:
    values = [value.strip() for value in re.split(r"[,;\t]", line.strip().rstrip(",;"))]
    if len(values) > len(FIELDS):
        raise StagesError(f"Line {number} has {len(values)} values; write {', '.join(FIELDS)}.")
    values += [""] * (len(FIELDS) - len(values))
    name, forward, backward, replicas = values
    if not name or len(name) > MOST_NAME:
        raise StagesError(f"Line {number}, name: give one of 1 to {MOST_NAME} characters.")
    time = _time(number, "forward", forward)
    if time == 0:
        raise StagesError(f"Line {number}, forward: 0 is too short; write more than 0, such as 0.1.")
    if backward.lower() in FORWARD_ONLY:
        back = None
    else:
        back = _time(number, "backward", backward, ", or: forward only") if backward else 2 * time
    return Stage(name, time, back, _count(number, replicas), number)


def _time(number: int, field: str, text: str, or_else: str = "") -> float:
    try:
        value = float(text)
    except ValueError:
        said = f"{text} is no number" if text else "it is missing"
        raise StagesError(f"Line {number}, {field}: {said}; write units such as 1.5{or_else}.") from None
    if not isfinite(value) or not 0 <= value <= MOST_TIME:
        raise StagesError(f"Line {number}, {field}: {text} is out of range; write 0 to {MOST_TIME}.")
    return value


def _count(number: int, text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_REPLICAS):
        raise StagesError(f"Line {number}, replicas: {text} cannot be; write a whole number, 1 to {MOST_REPLICAS}.")
    return int(text or 1)


def _check_gradients(stages: Sequence[Stage]) -> None:
    """Raises StagesError for a forward-only stage after one with a backward: gradients have to pass through it."""
    first = next((stage for stage in stages if stage.backward is not None), None)
    for stage in stages:
        if first is not None and stage.backward is None and stage.line > first.line:
            raise StagesError(
                f"Line {stage.line}, backward: the gradients of {first.name} (line {first.line}) come through "
                f"{stage.name}; give it a time, 0 if they only pass, or make {first.name} forward only."
            )
