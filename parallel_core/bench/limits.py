"""The most that this machine can do, as contestants in the ranks and turns of the duel that it limits.

    alone     every rank trains its share of the batch by itself: data parallelism with free communication
    whole     every rank trains the whole batch by itself
    cut       the same in as many micro-batches as the pipeline has: the cost of small batches here

The ceiling of a pipeline with m micro-batches on p ranks is, as a speed, `alone` x m / (m + p - 1) x the cost of small
batches: it has only the bubble of 1F1B (Narayanan et al. 2021b, section 2.2) and its small batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.bench import turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec

SIDES = ("alone", "whole", "cut")


def specs_of(spec: RunSpec) -> dict[str, RunSpec]:
    """Returns the runs of one device that limit `spec`, by their names in SIDES; none for a run of one device."""
    split, batch = spec.parallel, spec.train.global_batch
    made = {}
    if split.dp > 1 or split.pp > 1:
        made["alone"] = _single(spec, batch // split.world)
    if split.tp > 1 or split.pp > 1:
        made["whole"] = _single(spec, batch)
    if split.pp > 1:
        made["cut"] = _single(spec, batch, split.micro_batches)
    return made


def _single(spec: RunSpec, batch: int, micro_batches: int = 1) -> RunSpec:
    run = spec.model_dump() | {"parallel": {"micro_batches": micro_batches}}
    run["train"]["global_batch"] = batch
    return RunSpec.model_validate(run)


def contestants(spec: RunSpec, page: Progress, cache: Path) -> dict[str, Contestant]:
    """Returns the contestants of `specs_of` on any rank; they communicate with no other one."""
    from parallel_core.bench import own_engine

    return {side: own_engine.build(single, 0, Groups(), page, cache) for side, single in specs_of(spec).items()}


def held(ranks: list[dict[str, Any]], spec: RunSpec, sides: Sequence[str]) -> dict[str, Any]:
    """Returns how the contestants `sides` of `spec` compare with the limits measured in the same turns.

    limits: median seconds per step of each limit, and of the `ceiling`; {} for a run of one device. shares: each
    side's share of the ceiling (1 = all of the speed), which is `alone` for replicas; of_alone: its share of `alone`;
    work: its processor time over ranks relative to one device's. Each only where those limits were measured.
    """
    took = {side: turns.slowest(ranks, side) for side in SIDES if side in ranks[0]["seconds"]}
    found: dict[str, Any] = {}
    if "alone" in took:
        took["ceiling"] = ceiling(took, spec)
        found["shares"] = _shares(ranks, sides, took["ceiling"])
        found["of_alone"] = _shares(ranks, sides, took["alone"])
    if "whole" in took:
        one = turns.worked(ranks, "whole") / len(ranks)
        found["work"] = {side: turns.worked(ranks, side) / one for side in sides}
    return {"limits": {side: float(np.median(seconds)) for side, seconds in took.items()}, **found}


def ceiling(took: dict[str, np.ndarray], spec: RunSpec) -> np.ndarray:
    """Returns the least seconds of each turn's step; `took`: those of the limits."""
    if spec.parallel.pp == 1:
        return took["alone"]
    m, p = spec.parallel.micro_batches, spec.parallel.pp
    out: np.ndarray = took["alone"] * (m + p - 1) / m * np.median(took["cut"] / took["whole"])
    return out


def _shares(ranks: list[dict[str, Any]], sides: Sequence[str], most: np.ndarray) -> dict[str, float]:
    return {side: turns.quotient(most, turns.slowest(ranks, side))[1] for side in sides}
