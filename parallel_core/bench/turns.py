"""Runs contestants in the same ranks, taking turns, so that disturbances by other processes affect all of them."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parallel_core.local import LocalYard, Outcome
from parallel_core.observe.records import Sink
from parallel_core.spec import RunSpec

if TYPE_CHECKING:
    from torch import nn

    from parallel_core.observe.memory import MemoryMeter

Step = Callable[[int], float | None]
"""Trains the step of that number; returns the loss on ranks that know it."""

TURN = 4
"""Consecutive steps of a contestant before it is the next one's turn."""


class Contestant(NamedTuple):
    """One way to train, on one rank. `metered` trains a step under a memory meter that knows the parameters; `spans`
    returns the rows of the last step, if it is traced."""

    step: Step
    metered: Callable[[int], MemoryMeter]
    spans: Callable[[], np.ndarray] | None = None


def metered(step: Step, model: nn.Module) -> Callable[[int], MemoryMeter]:
    """Returns `Contestant.metered` for a model whose gradients are made by autograd."""

    def run(number: int) -> MemoryMeter:
        from parallel_core.observe.memory import MemoryMeter

        meter = MemoryMeter()
        meter.follow(model.parameters())
        with meter.measure():
            step(number)
        return meter

    return run


def take_turns(
    contestants: Mapping[str, Contestant], rounds: int, sink: Sink, meter: Collection[str] = (), steps: int = TURN
) -> dict[str, Any]:
    """Returns for each contestant `seconds` and `cpu` seconds per step, one median per turn, and its last `losses`.

    For those in `meter` also `live`: bytes of activations and buffers at the peak of one more step. A turn has
    `steps` steps. Spans are emitted to `sink`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    losses: dict[str, float | None] = {}
    for turn in range(rounds + 1):  # the first turn warms up
        for name, contestant in contestants.items():
            took, worked = [], []
            for n in range(turn * steps, (turn + 1) * steps):
                start, work = time.perf_counter(), time.process_time()
                losses[name] = contestant.step(n)
                took.append(time.perf_counter() - start)
                worked.append(time.process_time() - work)
                if turn and contestant.spans is not None:
                    sink.emit("spans", contestant.spans().tobytes(), step=n, contestant=name)
            if turn:
                seconds[name].append(float(np.median(took)))
                cpu[name].append(float(np.median(worked)))
    live = {}
    for name in meter:
        peak = contestants[name].metered((rounds + 1) * steps).peak
        live[name] = peak["activations"] + peak["buffers"]
    return {"seconds": seconds, "cpu": cpu, "losses": losses, "live": live}


def hold(kind: str, name: str, spec: RunSpec, rounds: int) -> list[dict[str, Any]]:
    """Returns the results of `take_turns` on each rank of `spec`'s world; `kind` selects the contestants (see
    `turns_server`)."""
    outcome = held(kind, name, spec, rounds)
    done = [outcome.last(rank, "turns") for rank in range(spec.parallel.world)]
    return [found for found in done if found is not None]


def held(kind: str, name: str, spec: RunSpec, rounds: int, steps: int = TURN) -> Outcome:
    """Returns the outcome of the run that takes turns, including spans; a turn has `steps` steps. Raises RuntimeError
    where it fails."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        asked = {"kind": kind, "name": name, "rounds": rounds, "steps": steps}
        (Path(folder) / "field.json").write_text(json.dumps(asked))
        with LocalYard([sys.executable, "-m", "parallel_core.bench.turns_server"]) as yard:
            outcome = yard.run(spec, Path(folder))
        if not outcome.ok:
            raise RuntimeError(outcome.failure())
    return outcome


def slowest(ranks: list[dict[str, Any]], name: str) -> np.ndarray:
    """Returns the seconds per step of one contestant in each turn, on the slowest rank."""
    out: np.ndarray = np.max([rank["seconds"][name] for rank in ranks], axis=0)
    return out


def worked(ranks: list[dict[str, Any]], name: str) -> float:
    """Returns the processor seconds per step of one contestant, summed over ranks."""
    return float(sum(np.median(rank["cpu"][name]) for rank in ranks))


def quotient(above: np.ndarray, below: np.ndarray) -> tuple[float, float, float]:
    """Returns (10th percentile, median, 90th percentile) of `above` / `below`, turn by turn."""
    low, middle, high = (float(v) for v in np.percentile(above / below, (10, 50, 90)))
    return low, middle, high
