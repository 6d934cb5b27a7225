"""A chart of every kind, of small made-up numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.charts import (
    allocations,
    breakdown,
    capacity,
    crossover,
    errors,
    fit,
    gantt,
    generation,
    generation_parts,
    heatmap,
    layers,
    loss,
    losses,
    memory,
    memory_over_time,
    overlay,
    plans,
    scaling,
    schedule,
    serving,
    speedup,
    splits,
    swept,
    swept_title,
    target,
    tradeoff,
    versions,
    waterfall,
)
from dashboard.charts.chart import Chart, Entry
from parallel_core.analysis.allocations import Allocations
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.generated import Parts, Stretch
from parallel_core.analysis.lateness import lateness
from parallel_core.analysis.losses import Losses
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Speedup, Stats
from parallel_core.analysis.versions import uses
from parallel_core.layout import Layout
from parallel_core.observe.records import MEMORY as MEMORY_ROW
from parallel_core.plan.cluster import accuracy
from parallel_core.plan.cluster.hardware import clusters
from parallel_core.plan.cluster.inference import Ask, serve
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.crossover import CrossoverCase
from parallel_core.plan.layer_graph import GraphLayer
from parallel_core.plan.room import Room
from parallel_core.profile.table import LayerBytes
from parallel_core.schedule import build
from parallel_core.searches.splits import FeasibleSplit
from parallel_core.simulate.schedule_preview import preview
from parallel_core.spec import RunSpec
from tests.dashboard import factory

MEMORY = {"params": 1 << 20, "grads": 1 << 20, "optimizer": 2 << 20, "activations": 4 << 20, "buffers": 0}


def entry(label: str, ms: float, ratio: float, **more: Any) -> Entry:
    step = Stats(ms / 1e3, ms / 1e3, ms / 1e3, ms / 1e3, 40)
    parts = Breakdown(compute=int(ms * 6e5), bubble=int(ms * 3e5), exposed_p2p=int(ms * 1e5), forward=int(ms * 2e5))
    memory_of = more.pop("memory", MEMORY)
    speed = Speedup(ratio, ratio * 0.98, ratio * 1.03, False, 40)
    return Entry(label, result=Result(label, step, 1.0, memory_of, parts), speed=speed, ideal=2.0, **more)


ENTRIES = [
    entry("DP", 60, 1.6),
    entry("Single", 96, 1.0, baseline=True),
    entry("Single + AR", 120, 0.8, recompute=True),
]


def charts() -> dict[str, list[Chart]]:
    """Module of `dashboard.charts` -> charts that it makes."""
    return {**_of_runs(), **_of_steps(), **_of_plans()}


def _of_runs() -> dict[str, list[Chart]]:
    curve = loss.Curve("DP", np.arange(3, dtype=np.int32), np.arange(3.0), np.array([3.0, 2.0, np.nan]), 3, 16, "dp")
    a, b = (e.result.breakdown for e in ENTRIES[:2] if e.result)
    assert a and b
    sized = [entry("DP", 60, 1.6, largest=40, layers=30), entry("Single", 96, 1.0, largest=20, layers=20)]
    points = [scaling.Point("", "DP", "dp", "strong", n, 0.9 * n, 0.1) for n in (1, 2, 4)]
    token = Stats(2e-3, 1.8e-3, 2.4e-3, 2e-3, 7)
    stretches = [Stretch(6, 8, 1e-3, 1e-3, 2e-3), Stretch(9, 12, 2e-3, 1e-3, 3e-3)]
    bars = [
        generation.Bar("TP 2", 9e-3, token, parts=Parts(1e-3, 2e-3, 1e-3)),
        generation.Bar("Single", 8e-3, token, single=True),
    ]
    reaches = [target.Reach("A", "pp", 1.0, 10, 4.0, True), target.Reach("B", "dp", 3.0, None, None)]
    return {
        "speedup": [speedup.chart(ENTRIES, "t", "s")],
        "breakdown": [breakdown.chart(ENTRIES, "t", "s")],
        "memory": [memory.chart(ENTRIES, "t", "s", limit=10 << 20)],
        "tradeoff": [tradeoff.chart(ENTRIES, "s")],
        "loss": [loss.chart([curve], "t", "s")],
        "waterfall": [waterfall.chart(a, b, ("A", "B"), "s")],
        "losses": [losses.chart(Losses(devices=2, single=100, bubble=30), "s")],
        "capacity": [capacity.chart(sized, Room(1 << 30))],
        "generation": [generation.tokens(some, "s") for some in (bars, [bar._replace(disturbed=True) for bar in bars])],
        "generation_parts": [
            generation_parts.where(bars, "s"),
            generation_parts.whole(bars, 8, "s"),
            generation_parts.positions([generation_parts.Line("TP 2", (2, 1, 1), stretches)], "It grows.", "s"),
        ],
        "fit": [fit.chart(sized, "t", 3, 1 << 30)],
        "scaling": [scaling.speedup(points, "s"), scaling.stalls(points, "s")],
        "swept": _swept(),
        "target": [target.chart(reaches, 1.25, 5)],
    }


def _swept() -> list[Chart]:
    """Of one, two and three fields."""
    fields = [
        swept_title.Field("Rate", ["0.1", "0.2", "0.3"]),
        swept_title.Field("Batch", ["4", "8"]),
        swept_title.Field("Decay", ["0"]),
    ]
    runs = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0)]
    loss_of = swept_title.Quantity("final loss", "{:.2f}".format)
    out = []
    for count in (1, 2, 3):
        tried = [
            swept_title.Tried(f"run {i}", at[:count], 1.0 + i if i else None, "failed") for i, at in enumerate(runs)
        ]
        out.append(swept.chart(fields[:count], tried, loss_of, "s"))
    return out


def _of_steps() -> dict[str, list[Chart]]:
    spec = RunSpec.model_validate(factory.spec_of({"pp": 2, "micro_batches": 4}))
    spans, layout = factory.simulate(spec), Layout.of(spec)
    joined, path = lateness(spans, spans, layout), critical_path(spans, layout)
    stream = {"parallel": {"pp": 2, "micro_batches": 4, "schedule": "1f1b-naive"}, "train": {"clip": "stage"}}
    grid = versions.Grid(["Naive"], uses(build(RunSpec.model_validate(stream))))
    curve = np.zeros(3, MEMORY_ROW)
    curve["t"], curve["activations"] = [0, 50, 100], [0, 1 << 20, 0]
    metered = memory_over_time.Metered(0, curve, MEMORY, 1 << 23, spans[0])
    found = Allocations(np.arange(3), np.array([8, 24, 8]), 8, 24, 1, (), 0, 0)
    return {
        "gantt": [
            gantt.chart([("PP-1F1B", spans)], "t", "s"),
            gantt.chart([("measured", spans), ("predicted", spans)], "t", "s", predicted=(1,)),
        ],
        "heatmap": [heatmap.chart(spans, "t", "s")],
        "overlay": [overlay.chart(spans, joined, path, "t", "s")],
        "schedule": schedule.charts([preview("1f1b", 2, 4)], ["a"]),
        "versions": [versions.chart([grid], "s")],
        "memory_over_time": [memory_over_time.chart([metered], "s")],
        "allocations": [allocations.chart(found, 3, 0)],
    }


def _of_plans() -> dict[str, list[Chart]]:
    case = CrossoverCase(1024, 24, 1024, 32, 8, 4, 1e14, 1e11)
    served = serve(presets()["gpt-22b"], clusters()["selene"], Ask(512, 128))
    able = [
        FeasibleSplit(name=name, spec={}, devices=2, seconds=1.0, memory=1 << 30, best=name == "DP")
        for name in ("DP", "TP")
    ]
    graph = [GraphLayer(name, 0.1, 0.2, 1e6, 1e6) for name in ("embed", "head")]
    held = [LayerBytes(unit=name, parameters=1 << 20, saved=1 << 20, boundary=1 << 10) for name in ("embed", "head")]
    return {
        "plans": [
            plans.step({"compute": 0.05, "bubble": 0.01}, 0.02, "t"),
            plans.memory([("peak", {"params": 1e9, "activations": 2e9})], [4e9], "t"),
        ],
        "crossover": [crossover.chart(case, "hidden", [])],
        "errors": [errors.chart("times", "t", accuracy.step_times(), 0.08)],
        "serving": [serving.chart(served)],
        "splits": [splits.chart(able, "s")],
        "layers": [layers.times(graph, "8 samples", "s"), layers.sizes(held, "8 samples", "s")],
    }
