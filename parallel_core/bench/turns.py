"""Runs contestants in the same ranks, taking turns step by step, so that disturbances by other processes affect all of
them. The order changes every round, so that none always trains after the same other one, in the caches it leaves."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parallel_core.local import LocalRunner
from parallel_core.observe.record_files import Sink
from parallel_core.outcome import Outcome
from parallel_core.spec import RunSpec

if TYPE_CHECKING:
    from torch import nn

    from parallel_core.observe.memory import MemoryMeter

Step = Callable[[int], float | None]
"""Trains the step of that number; returns the loss on ranks that know it."""

WARMUP = 6
"""Rounds before the timed ones. The loss of the first timed step is thus that of the weights after six updates."""
SEED = 1
"""Of the sequence of orders."""


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
    contestants: Mapping[str, Contestant],
    rounds: int,
    sink: Sink,
    meter: Collection[str] = (),
    together: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Returns for each contestant `seconds` and `cpu` seconds of each step, and `losses` of all its steps, those of the
    WARMUP rounds before included.

    A round is one step of every contestant, in the orders of `sequence`, which may be more than `rounds`. `together` is
    called before each step and returns on all ranks at once. For those in `meter` also `live`: bytes of activations and
    buffers at the peak of one more step. Spans are emitted to `sink`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    losses: dict[str, list[float | None]] = {name: [] for name in contestants}
    orders = [*sequence(tuple(contestants), WARMUP)[:WARMUP], *sequence(tuple(contestants), rounds)]
    for n, order in enumerate(orders):
        for name in order:
            contestant = contestants[name]
            together()
            start, work = time.perf_counter(), time.process_time()
            losses[name].append(contestant.step(n))
            took, worked = time.perf_counter() - start, time.process_time() - work
            if n < WARMUP:
                continue
            seconds[name].append(took)
            cpu[name].append(worked)
            if contestant.spans is not None:
                sink.emit("spans", contestant.spans().tobytes(), step=n, contestant=name)
    live = {name: _live(contestants[name], len(orders)) for name in meter}
    return {"seconds": seconds, "cpu": cpu, "losses": losses, "live": live}


def _live(contestant: Contestant, step: int) -> int:
    peak = contestant.metered(step).peak
    return peak["activations"] + peak["buffers"]


def balanced(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns orders of `names` in which each of them takes every position, and directly follows every other one,
    equally often (Williams 1949, Australian Journal of Scientific Research A 2, 149-168)."""
    count = len(names)
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]
    orders = [tuple(names[(i + shift) % count] for i in zigzag) for shift in range(count)]
    return orders + [order[::-1] for order in orders] if count % 2 else orders


def sequence(names: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """Returns the orders of at least `rounds` rounds, all of `balanced` equally often; of fewer rounds than there are
    orders, the first `rounds`.

    Each time round they are shuffled, alike on all ranks, so that it is not always the same pair of contestants that
    meets between two rounds.
    """
    orders, draw = balanced(names), random.Random(SEED)
    times = -(-rounds // len(orders))
    drawn = [order for _ in range(times) for order in draw.sample(orders, len(orders))]
    return drawn if rounds >= len(orders) else drawn[:rounds]


def hold(kind: str, name: str, spec: RunSpec, rounds: int) -> list[dict[str, Any]]:
    """Returns the results of `take_turns` on each rank of `spec`'s world; `kind` selects the contestants (see
    `turns_server`)."""
    with held(kind, name, spec, rounds) as outcome:
        return results(outcome)


@contextmanager
def held(kind: str, name: str, spec: RunSpec, rounds: int) -> Iterator[Outcome]:
    """A context with the outcome of the run that takes turns, including spans, whose records are there until it ends.
    Raises RuntimeError where the run fails."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        asked = {"kind": kind, "name": name, "rounds": rounds}
        (Path(folder) / "field.json").write_text(json.dumps(asked))
        with LocalRunner([sys.executable, "-m", "parallel_core.bench.turns_server"]) as runner:
            outcome = runner.run(spec, Path(folder))
        if not outcome.ok:
            raise RuntimeError(outcome.failure())
        yield outcome


def results(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns the results of `take_turns` on each rank of a run of `held`."""
    done = [outcome.last(rank, "turns") for rank in sorted(outcome.frames)]
    return [found for found in done if found is not None]


def slowest(ranks: list[dict[str, Any]], name: str) -> np.ndarray:
    """Returns the seconds of one contestant's step in each turn, on the slowest rank."""
    out: np.ndarray = np.max([rank["seconds"][name] for rank in ranks], axis=0)
    return out


def worked(ranks: list[dict[str, Any]], name: str) -> float:
    """Returns the processor seconds per step of one contestant, medians summed over ranks."""
    return float(sum(np.median(rank["cpu"][name]) for rank in ranks))


def loss(ranks: list[dict[str, Any]], name: str) -> float:
    """Returns the loss of one contestant after WARMUP updates, from the first rank that knows it."""
    return next(float(own) for rank in ranks if (own := rank["losses"][name][WARMUP]) is not None)


def quotient(above: np.ndarray, below: np.ndarray) -> tuple[float, float, float]:
    """Returns (10th percentile, median, 90th percentile) of `above` / `below`, turn by turn."""
    low, middle, high = (float(v) for v in np.percentile(above / below, (10, 50, 90)))
    return low, middle, high
