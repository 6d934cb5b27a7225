"""What-if: a measured step simulated again with changes.

There are two kinds of change. Those that keep every operation (links, device, recomputation) change each measured cost,
so that even the jitter of the step remains. Those that change the program (schedule, micro-batches, chunks) or the
stages (balanced) use the median of each stage's operations; costs are divided over a model's layers by their FLOPs, and
over micro-batches by their size, beside `constant_costs`. The prediction then is the measured step times the
ratio of the changed to the unchanged program at these medians. A message of half the size is taken to need half the
time, beside what one costs however small: one step shows messages of one size, so that part is known of CPUs alone, and
of links so slow that it must be most (`message_turns.SLOWEST`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import last_end
from parallel_core.plan.partition import flop_weights
from parallel_core.schedule import build
from parallel_core.schedule.traits import TRAITS, takes_early_gradients
from parallel_core.simulate import simulate
from parallel_core.simulate.constant_costs import Constant, constant_costs
from parallel_core.simulate.measured import Measured
from parallel_core.simulate.replay_prices import SamePrices, TypicalPrices
from parallel_core.spec import RunSpec

FREE = math.inf
"""Factor on links: communication takes no time."""
ASSUMED = (
    "Other schedules and micro-batches take the median cost of each stage's operations; smaller micro-batches are "
    "assumed to cost in proportion, and so are their messages, but for launches, weights and the handling of a "
    "message, of which a CPU core's usual costs are taken, and more of them in flight to cost the same, though a CPU's "
    "caches then hold less of each. A link is assumed to carry one message at a time each way, unless this step shows "
    "that it carries several, and 100 Mbit/s or more, 500 MB/s within a host: what "
    "messages take beyond that is latency, whatever their size."
)
"""Assumptions of a replay that changes the program, for its reader."""
GATHERS_ASIDE = (
    "Waits for gathers of parameters, which run on a stream of their own here, are within the operations and count as "
    "work: free or faster links leave them as they are, and a faster device shortens them."
)
"""Added for a step of which `waits.gathers_aside` is true."""
TAKE_TURNS = (
    "Ranks took turns on shared devices here, and the replay gives each a device of its own: whatever has them work "
    "at the same time instead of waiting is predicted too fast."
)
"""Added for a step of ranks that share devices."""


@dataclass(frozen=True)
class Change:
    """What to change; the defaults leave everything as measured."""

    links: float = 1.0
    """Speedup of all communication; FREE: none at all."""
    messages: float = 1.0
    """Further speedup of messages between stages alone."""
    device: float = 1.0
    """Speedup of the device."""
    no_recompute: bool = False
    balanced: bool = False
    """Every stage gets the mean of all stages."""
    schedule: str = ""
    micro_batches: int = 0
    """Micro-batches a replica; 0: as measured."""
    early_gradients: bool = False
    """Gradients leave a stage before its weight gradients (`schedule.passes.early_gradients`); False: as measured."""
    same_messages: bool = False
    """Messages of smaller or larger micro-batches take as long as before, as where all their time is latency."""

    @property
    def makes_a_program(self) -> bool:
        """Whether it changes the program or the stages, not only costs."""
        return self.balanced or self.early_gradients or bool(self.schedule) or bool(self.micro_batches)


@dataclass(frozen=True)
class Replay:
    """`spans` by pipeline rank, ns from the start of the step; `step`: the prediction in ns."""

    spec: RunSpec
    spans: Mapping[int, NDArray[np.void]]
    step: float


def changed(spec: RunSpec, change: Change) -> RunSpec:
    """The spec with the program of `change`; its cuts stay where the schedule allows (`recut`). Raises pydantic's
    ValidationError for incompatible values."""
    split: dict[str, Any] = spec.parallel.model_dump()
    if change.schedule and change.schedule != spec.parallel.schedule:
        split |= {"schedule": change.schedule, "chunks": None, "program": None}
        split |= {"cuts": None} if recut(spec, change.schedule) else {}
        split["early_gradients"] &= change.schedule in takes_early_gradients()
    if change.micro_batches:
        split["micro_batches"] = change.micro_batches
    split["early_gradients"] |= change.early_gradients
    return RunSpec.model_validate(spec.model_dump() | {"parallel": split})


def recut(spec: RunSpec, schedule: str) -> bool:
    """Whether `schedule` ('': as measured) has another number of stages than the spec, whose cuts then cannot stay: the
    stages are cut by FLOPs, which may save more than the schedule does."""
    split = spec.parallel
    other = schedule not in ("", split.schedule) and TRAITS[schedule].chunks * split.pp != split.stages
    return split.cuts is not None and other


def replay(spec: RunSpec, measured: Measured, change: Change) -> Replay:
    """The step of `spec` with costs `measured`, with `change`. Raises as `changed` does."""
    after = changed(spec, change) if change.makes_a_program else spec
    return replay_as(after, spec, measured, change, flop_weights(spec.model), constant_costs(after))


def replay_as(
    after: RunSpec,
    spec: RunSpec,
    measured: Measured,
    change: Change,
    weights: Sequence[int],
    constant: Sequence[Constant] = (),
) -> Replay:
    """As `replay`, for the program and stages of `after`; `weights`: relative costs of the layers of both; `constant`:
    `constant_costs` of `after`, () where its layers are not known."""
    if not change.makes_a_program:
        spans = simulate(build(spec), SamePrices(measured, change))
        return Replay(spec, spans, last_end(spans))
    plain = simulate(build(spec), TypicalPrices(spec, spec, measured, Change(), weights))
    spans = simulate(build(after), TypicalPrices(spec, after, measured, change, weights, constant))
    scale = measured.step / last_end(plain)
    for rows in spans.values():
        for side in ("start", "end"):
            rows[side] = (rows[side] * scale).round()
    return Replay(after, spans, float(last_end(spans)))


def plan(spec: RunSpec, measured: Measured) -> dict[int, NDArray[np.void]]:
    """The step with every operation at the median cost of its kind and stage: spans by pipeline rank. A measured
    operation that is later than here was delayed by chance or by another rank."""
    return simulate(build(spec), TypicalPrices(spec, spec, measured, Change(), flop_weights(spec.model)))
