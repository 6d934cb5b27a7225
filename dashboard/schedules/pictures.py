"""One step of a strategy as a small picture with one row a device: of its schedule, or of a few of its layers."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.charts.theme import phase_of
from parallel_core.analysis.rows import last_end
from parallel_core.layout import Layout
from parallel_core.outline import block_of
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.strategy import recomputed_flops
from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import RunSpec

STREAMED = 2
"""Steps that are drawn, so that it shows which schedules lose time between steps."""
BLOCKS = 4
"""Blocks that are drawn for strategies that change what happens inside layers."""
WIDE, ROW = 320, 14
_DRAWN = COMPUTE | {Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.GATHER, Kind.OPT_STEP}


@dataclass(frozen=True)
class Rect:
    """A rectangle of the picture, in pixels."""

    phase: str
    x: float
    y: float
    width: float


def picture(spec: RunSpec) -> list[Rect]:
    """The rectangles; [] for one device that only computes."""
    split = spec.parallel
    if split.pp == 1 and split.tp > 1:
        return _rects([[*_tensor(spec), ("optimizer", 0.5)]] * split.tp)
    if split.world == 1:
        return _rects([[*_again(spec), ("optimizer", 0.5)]]) if split.recompute != "none" else []
    return _schedule(spec)


def _tensor(spec: RunSpec) -> list[tuple[str, float]]:
    """Attention and MLP of each block, each followed by the sum of its outputs, in backward of its gradients.

    With sequence parallelism the sum is a reduce-scatter and, before the next one, a gather; backward gathers once
    more. By columns, each second matrix gathers its input (four times as wide in an MLP) and its output.
    """
    whole, part = ("communication", 0.3), ("communication", 0.15)
    if spec.parallel.tensor_split == "columns":
        wide, half, halves = ("communication", 0.6), ("forward", 0.5), ("backward", 1.0)
        ahead = [half, part, half, part, half, wide, half, part]
        back = [halves, wide, halves, whole, halves, part, halves, whole]
        return [*ahead * BLOCKS, *back * BLOCKS]
    ahead, back = ([part] * 2, [part] * 3) if spec.parallel.sequence else ([whole], [whole])
    return [*[("forward", 1.0), *ahead] * 2 * BLOCKS, *[("backward", 2.0), *back] * 2 * BLOCKS]


def _again(spec: RunSpec) -> list[tuple[str, float]]:
    """Each block runs a part of its forward again before its backward: all but its last product, or its attention
    core."""
    both = zip(spec.model.units(), flop_weights(spec.model), strict=True)
    share = sum(recomputed_flops(spec)) / sum(flops for unit, flops in both if block_of(unit))
    return [*[("forward", 1.0)] * BLOCKS, *[("recompute", share), ("backward", 2.0)] * BLOCKS]


def _rects(rows: list[list[tuple[str, float]]]) -> list[Rect]:
    """Rectangles of rows of (phase, time), each row scaled to the width of the picture."""
    out = []
    for device, pieces in enumerate(rows):
        whole, at = sum(took for _, took in pieces), 0.0
        for phase, took in pieces:
            out.append(Rect(phase, round(WIDE * at / whole, 2), device * ROW, round(WIDE * took / whole, 2)))
            at += took
    return out


def _schedule(spec: RunSpec) -> list[Rect]:
    """The simulated schedule: forward takes 1, backward 2, a reduction 1 and the optimizer 1/4, each per chunk."""
    ns, layout = 1000, Layout.of(spec)
    chunks, made = spec.parallel.chunks_per_rank, build(spec, STREAMED)
    each = {Kind.F: ns, Kind.B: ns, Kind.W: ns, Kind.BW: 2 * ns}
    whole = dict.fromkeys((Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.GATHER), ns * chunks)
    whole[Kind.OPT_STEP] = ns * chunks // 4
    costs = Costs({(stage, kind): cost for stage in range(made.stages) for kind, cost in (each | whole).items()})
    spans = simulate(made, costs)
    end = last_end(spans)
    return [
        Rect(
            phase_of(int(row["kind"])),
            round(WIDE * int(row["start"]) / end, 2),
            device * ROW,
            round(WIDE * int(row["end"] - row["start"]) / end, 2),
        )
        for rank, rows in spans.items()
        for device in layout.tensor_group(rank)
        for row in rows
        if int(row["kind"]) in _DRAWN and row["end"] > row["start"]
    ]
