"""The sections of the Accuracy page; a new section is a function here and a line in SECTIONS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboard.charts import errors
from dashboard.charts.chart import Chart
from dashboard.ledger import records
from parallel_core.analysis.quantities import percent_text, seconds_text, signed_percent_text, significant
from parallel_core.plan.cluster import accuracy, pipedream_2019
from parallel_core.plan.cluster.fit import FREE
from parallel_core.plan.cluster.store import table
from parallel_core.plan.cluster.zero_bubble import models

QUICK = ("1.5B", "6.2B")
"""Models of the zero-bubble tables that are simulated without a click; the others take some seconds."""
GOAL_WORST = 0.08
RECORDED = 10
"""The most settled predictions of this yard that are shown, newest first; the Record has all."""


@dataclass(frozen=True)
class Section:
    """The first of `sentences` is the finding. `template` renders what a chart cannot show; its context has the
    section."""

    key: str
    title: str
    sentences: list[str]
    charts: list[Chart] = field(default_factory=list)
    template: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def step_times() -> Section:
    """Published step times; those that constants were fitted on are summarised separately."""
    found = accuracy.step_times()
    out, inside = (accuracy.summary([r for r in found if r.fitted is used]) for used in (False, True))
    text = f"Out of the fit: {_errors(out)}. In the fit: {_errors(inside)}."
    names = ", ".join(FREE)
    how = (
        f"{len(FREE)} constants ({names}) were fitted on {inside.count} of {len(found)} rows, one set for all of them. "
    )
    how += "The formulas were written by people who knew every row; only the fitted numbers were kept blind."
    since = "Times of 2021 are the published FLOP/s of a GPU, three digits, turned into seconds."
    chart = errors.chart("times", _within(found, GOAL_WORST), found, GOAL_WORST)
    return Section("times", "Step times", [text, how, since], [chart])


def record() -> Section:
    """This yard's runs: each was predicted before it was queued, and settled by its measurement."""
    times, memory_of = records.time_record(), records.memory_record()
    settled = records.settled()
    more = {"times": times, "rows": settled[:RECORDED], "total": settled.count()}
    more["paced"] = records.paced_record()
    text = " ".join(records.of_both(times, memory_of)).rstrip()
    return Section("record", "Runs of this yard", [text], template="plans/accuracy/record.html", more=more)


def other_times() -> Section:
    """Times that no constant was fitted on: a single layer, and a run with replicas."""
    layers, replicas = accuracy.layer_times(), accuracy.with_replicas()
    found = accuracy.summary(layers)
    text = f"One layer of the 22 B model: {_errors(found)}. With 8 replicas: {signed_percent_text(replicas[0].error)}."
    return Section("layers", "One layer, and replicas", [text], [errors.chart("layers", text, [*layers, *replicas])])


def pipedream() -> Section:
    """PipeDream's own formula compared with its published speedups."""
    found = pipedream_2019.speedups()
    rows = [line.row for line in found]
    title = f"PipeDream's speedup over data parallelism: {_errors(accuracy.summary(rows))}."
    alike = sum(line.same_kind for line in found)
    how = f"In {alike} of {len(found)} rows the programme chooses what was run: a pipeline, or data parallelism alone. "
    how += (
        "Its formula lets data parallelism hide its gradients behind computation as far as the links' rated speed goes;"
    )
    how += " what was measured beyond that it does not know."
    others = [line.row for line in found if "-" in line.published]
    how += f" {len(rows) - len(others)} rows are data parallelism itself, 1 by definition; the other {len(others)}"
    how += f" have a mean error of {100 * accuracy.summary(others).mean:.1f} %."
    charts = [errors.chart("pipedream", title, rows, right="predicted too large")]
    return Section("pipedream", "PipeDream's speedups", [title, how], charts)


def memory() -> Section:
    """Korthikanti's published memory figures, which are formulas, too."""
    first, seventh = accuracy.figure_1(), accuracy.figure_7()
    points = max(abs(row.predicted - row.measured) for row in seventh)
    exact = max(abs(row.error) for row in first)
    text = f"{len(first)} values of Figure 1 are met exactly (largest difference {100 * exact:.1g} %)."
    other = f"{len(seventh)} bars of Figure 7, activations in % of the baseline's, are met within "
    other += f"{significant(points, 2)} percentage points, as far as they can be read."
    title = f"{text} {other}"
    return Section(
        "memory",
        "Memory",
        [title, "Nothing here was measured: the paper computed both figures from its formulas."],
        [errors.chart("figures", title, [*first, *seventh], right="predicted too much", against="published")],
    )


def bubbles() -> Section:
    """The zero-bubble tables: a part for each model, simulated when it is requested."""
    text = "T_W and T_comm come from two published rates of a row; its other four rates are then predicted."
    other = (
        "Beside them, our own search for an order gets what the published scheduler got: profiled times and a limit."
    )
    more = {"models": [{"model": model, "quick": model in QUICK} for model in models()]}
    return Section("bubbles", "Bubble rates", [text, other], template="plans/accuracy/bubbles.html", more=more)


def constants() -> Section:
    """The constants, where each is from, and which devices they are extrapolated to."""
    data = table("efficiency")
    rows = []
    for name, value in data["constants"].items():
        text = seconds_text(value) if name.endswith("latency") else significant(value)
        rows.append((name, text, "fitted" if name in data["fitted"] else data["sources"].get(name, "")))
    text = f"{len(rows)} constants, {len(data['fitted'])} of them fitted, all on A100s: other devices are extrapolated."
    return Section("constants", "Constants", [text], template="plans/accuracy/constants.html", more={"rows": rows})


SECTIONS: tuple[Callable[[], Section], ...] = (
    step_times,
    record,
    other_times,
    memory,
    bubbles,
    pipedream,
    constants,
)
"""In the order of the page."""


def _within(rows: Sequence[accuracy.Row], goal: float) -> str:
    """How many rows are within the error aimed at, and which is furthest off."""
    worst = max(rows, key=lambda row: abs(row.error))
    inside = sum(abs(row.error) <= goal for row in rows)
    many = f"All {inside}" if inside == len(rows) else f"{inside} of {len(rows)}"
    off = f"furthest off: {worst.key}, {signed_percent_text(worst.error)}"
    return f"{many} rows are within the {percent_text(goal)} aimed at; {off}."


def _errors(found: accuracy.Summary) -> str:
    each = f"mean error {100 * found.mean:.1f} %, worst {100 * found.worst:.1f} %"
    return f"{found.count} rows, {each}, bias {signed_percent_text(found.bias)}"
