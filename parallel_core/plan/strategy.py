"""Name and family of a parallelisation strategy, and its ideal speedup."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np

from parallel_core.analysis.rows import last_end
from parallel_core.outline import block_of, outline_of
from parallel_core.outline.recompute import recompute_label, recomputed
from parallel_core.plan.in_flight import alike, shortened
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.split_bubbles import IDLE
from parallel_core.rules.stages import dashed_text
from parallel_core.schedule import plain
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import idle_times
from parallel_core.spec import ModelSpec, ParallelSpec, RunSpec

Family = Literal["single", "dp", "tp", "pp", "combined"]

_MOST_SIMULATED = 30_000
"""Most pairs of a stage and a micro-batch that are simulated: about 0.3 s."""


def label(spec: RunSpec, *, degrees: bool = True) -> str:
    """Name of the strategy: `Single`, `DP`, `PP-1F1B`, `DP 2 x TP 2`, `TP 4`, `... + AR` with recomputation.

    A degree of 2 is omitted if only one axis is split, and every degree without `degrees`; micro-batches are named if
    they are mere accumulation. `by columns`: no linear layer is split by rows. `+ SP`: sequence parallelism. `+ early
    gradients`: gradients leave a stage before W. `+ ZeRO-1`: replicas share the optimizer state.
    """
    split = spec.parallel
    axes = _axes(split)
    named = degrees and not (len(axes) == 1 and axes[0][1] == 2)
    text = " x ".join(f"{name} {degree}" if named else name for name, degree in axes) or "Single"
    if split.pp == 1 and split.micro_batches > 1:
        text += f" x{split.micro_batches} micro-batches"
    if split.tensor_split == "columns":
        text += " by columns"
    if split.sequence:
        text += " + SP"
    if split.early_gradients:
        text += " + early gradients"
    if split.zero:
        text += f" + ZeRO-{split.zero}" + (" (fully_shard)" if split.zero_backend == "fully_shard" else "")
    again = recompute_label(split)
    return f"{text} + {again}" if again else text


def text_label(split: ParallelSpec) -> str:
    """As `label`, of a run that generates text: `Generate, TP 2`."""
    return f"Generate, {degrees_label(split.tp, split.pp, split.dp)}".replace("Single", "single")


def degrees_label(tp: int, pp: int, dp: int) -> str:
    """`Single`, `TP 2`, `DP 2 x TP 2`, where a pipeline has no schedule, as one stage works at a time."""
    degrees = (("DP", dp), ("TP", tp), ("PP", pp))
    return " x ".join(f"{axis} {degree}" for axis, degree in degrees if degree > 1) or "Single"


def family(spec: RunSpec) -> Family:
    """The one axis that is split, `single` where none is and `combined` where several are."""
    split = spec.parallel
    degrees: dict[Family, int] = {"dp": max(split.copies), "tp": max(split.tensor_ranks), "pp": split.pp}
    split_axes = [name for name, degree in degrees.items() if degree > 1]
    if len(split_axes) > 1:
        return "combined"
    return split_axes[0] if split_axes else "single"


def ideal_speedup(spec: RunSpec) -> float:
    """Speedup over one device if communication were free and every layer divided evenly.

    The strategy's inherent costs remain: the flush bubble of a pipeline, p m / (m + p - 1) (Huang et al. 2019), a naive
    pipeline that keeps one device busy at a time, and the part of the forward that recomputation runs again.
    """
    split = spec.parallel
    return split.world / (1 + idle_share(split)) / (1 + recompute_share(spec))


def recompute_share(spec: RunSpec) -> float:
    """FLOPs of recomputation over those of a plain step: those of blocks, without their last product, or of their
    attention cores."""
    return sum(recomputed_flops(spec)) / model_flops(spec.model, 1)


def step_flops(spec: RunSpec) -> list[int]:
    """FLOPs of one sample in each layer in a step: forward, backward at twice that, and recomputation."""
    both = zip(flop_weights(spec.model), recomputed_flops(spec), strict=True)
    return [3 * once + again for once, again in both]


def recomputed_flops(spec: RunSpec) -> list[int]:
    """FLOPs of one sample that recomputation runs again in each layer."""
    units = spec.model.units()
    chosen, again = recomputed(spec.parallel, units), outline_of(spec.model).again_flops()
    if spec.parallel.recompute == "selective":
        core = outline_of(spec.model).core_flops()
        again = tuple(core if unit.endswith(".attn") else 0 for unit in units)
    return [flops if block_of(unit) in chosen else 0 for unit, flops in zip(units, again, strict=True)]


def model_flops(model: ModelSpec, samples: int) -> int:
    """FLOPs a step needs for `samples` sequences: the products of forward, and twice as many of backward, without
    recomputation."""
    return 3 * samples * sum(outline_of(model).product_flops())


def idle_share(split: ParallelSpec) -> float:
    """Idle over busy time of a step where all stages are equal and T_B = T_W = T_F: the cost of the flush.

    (p - 1) / (v m) with v chunks a rank for schedules with the trait `ideal_idle`, on a loop only where m is a multiple
    of p (Narayanan et al. 2021b, section 2.2); 0 without a flush; `split_bubbles` for ZB-H1, ZB-H2 and ZB-V; every
    other schedule is simulated. All ranks wait for the last one before the optimizer, as they do for the gradient norm.
    """
    if split.replicas is not None:
        return _in_turn(split.model_copy(update={"tp": 1, "widths": None, "cuts": None}))
    if split.pp == 1 or not split.flushes:
        return 0.0
    if split.early_gradients:
        return _shortened(split)
    if split.schedule == "naive":
        return split.pp - 1.0
    traits = TRAITS[split.schedule]
    if traits.ideal_idle and (traits.shape == "line" or split.micro_batches % split.pp == 0):
        return (split.pp - 1) / (split.chunks_per_rank * split.micro_batches)
    if split.schedule in IDLE and split.micro_batches >= split.pp:
        each = np.array(float(split.chunks_per_rank))
        idle = IDLE[split.schedule](np.array(split.pp), np.array(split.micro_batches), [each] * 3)
        return float(idle) / (3 * split.chunks_per_rank * split.micro_batches)
    return _shortened(split)


def _shortened(split: ParallelSpec) -> float:
    """Simulates the pipeline with fewer micro-batches, if it has many: it idles as long, beside more work. Of a very
    deep one, simulates fewer stages with as many micro-batches each, whose share is about the same: whole rounds of
    them where they are whole, and a part of a round where they are not."""
    short = shortened(split)
    share = short.micro_batches / split.micro_batches
    parts = short.stages * short.micro_batches / _MOST_SIMULATED
    if parts > 1 and split.program is None:
        fewer = max(2, int(split.pp / math.sqrt(parts)))
        in_all = max(1, round(fewer * short.micro_batches / split.pp))
        short = short.model_copy(update={"pp": fewer, "micro_batches": in_all})
    return _simulated(alike(short)) * share


@lru_cache(maxsize=256)
def _in_turn(split: ParallelSpec) -> float:
    """Idle share where a stage with r replicas holds r shares of the layers: the flush, if any, and the wait for
    replicas that have one micro-batch more."""
    counts = split.copies
    step = 3 * max(-(-split.per_step // count) * count for count in counts)
    if split.flushes:
        costs = Costs({(s, kind): r for s, r in enumerate(counts) for kind in (Kind.F, Kind.B, Kind.W)})
        step = last_end(simulate(plain(split), costs))
    return step / (3 * split.per_step) - 1


@lru_cache(maxsize=256)
def _simulated(split: ParallelSpec) -> float:
    spans = simulate(plain(split), Costs.uniform(split.stages, 1, 1, 1))
    step = last_end(spans)
    return step / min(times.busy for times in idle_times(spans).values()) - 1


def _axes(split: ParallelSpec) -> list[tuple[str, int | str]]:
    tensor = ("TP", split.tp if split.widths is None else dashed_text(split.widths))
    pipeline = TRAITS[split.schedule].label
    if split.replicas is not None:
        named = [(pipeline, dashed_text(split.replicas)), tensor]
    else:
        named = [("DP", split.dp), tensor, (pipeline, split.pp)]
    return [(axis, degree) for axis, degree in named if degree != 1]
