"""What study and compare pages know of a set of runs: one row a run against a baseline, and the sentences over them.

Only run rows, their summaries and the loss series are read here; spans are read by the figures that draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts.chart import Entry
from dashboard.runs.models import ENDED, Attempt, Run, SeriesChunk, State
from dashboard.runs.selectors import waiting
from parallel_core.analysis import sentences
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.parity import Parity, parity
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats, speedup
from parallel_core.observe.records import POINT
from parallel_core.plan.strategy import family, ideal_speedup
from parallel_core.spec import RunSpec

TOLERANCES = {"fp32": 1e-5, "fp64": 1e-12}
"""Relative difference of losses up to which two runs count as equal."""
PARITY_STEPS = 5_000
"""Losses are compared over at most the first so many steps."""
MAX_WAITS = 4
"""Queued runs whose reason is worked out one by one; studies run in order, so the rest wait for these."""


@dataclass(frozen=True)
class Row:
    """One run, as tables and charts show it."""

    run: Run
    spec: RunSpec
    entry: Entry
    parity: Parity | None = None
    sentence: str = ""
    """Why it is not there yet, or how it ended."""

    @property
    def steps_done(self) -> int:
        return 0 if self.run.step is None else self.run.step + 1

    @property
    def progress(self) -> int:
        """Steps done, in percent."""
        return min(100, round(100 * self.steps_done / self.spec.train.steps))


@dataclass(frozen=True)
class Overview:
    """Rows in drawing order: finished ones fastest first, then running, queued, and those without a result."""

    rows: Sequence[Row]
    baseline: Row | None
    limit: int | None
    """Bytes of memory that a device of these runs has."""
    losses: Mapping[int, NDArray[np.void]] = field(default_factory=dict)
    """run id -> POINT rows (see `losses_of`)."""

    @property
    def entries(self) -> list[Entry]:
        return [row.entry for row in self.rows]

    @property
    def results(self) -> list[Result]:
        """Of the runs that succeeded."""
        return [row.entry.result for row in self.rows if row.entry.done and row.entry.result]

    @property
    def base(self) -> Result | None:
        return self.baseline.entry.result if self.baseline and self.baseline.entry.done else None

    @property
    def open(self) -> list[Row]:
        """Runs that have not ended."""
        return [row for row in self.rows if row.run.state not in ENDED]

    @cached_property
    def verdict(self) -> list[str]:
        if self.base is None:
            return [self._without_baseline()]
        return sentences.verdict(self.results, self.base)

    def _without_baseline(self) -> str:
        done, every = len(self.results), len(self.rows)
        if self.baseline is None:
            return f"{done} of {every} runs have finished."
        return f"{done} of {every} runs have finished; the baseline, {self.baseline.entry.label}, has no result yet."

    @property
    def source(self) -> str:
        """The line under every chart of measured times."""
        counts = sorted({r.step.n for r in self.results})
        steps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0] if counts else 0)
        skipped = sorted({row.spec.train.warmup_steps for row in self.rows})
        words = " or ".join(map(str, skipped)) or "0"
        return f"measured, {steps} steps, {words} skipped, {len(self.results)} of {len(self.rows)} runs"

    @property
    def parities(self) -> dict[str, Parity]:
        return {row.entry.label: row.parity for row in self.rows if row.parity and row is not self.baseline}

    @property
    def parity_sentence(self) -> str:
        if self.baseline is None:
            return ""
        tolerance = TOLERANCES[self.baseline.spec.train.precision]
        return sentences.parity_sentence(self.parities, self.baseline.entry.label, tolerance)

    @property
    def largest_others(self) -> float | None:
        known = [row.entry.others for row in self.rows if row.entry.others is not None]
        return max(known, default=None)


def overview(runs: Iterable[Run], baseline: Run | None = None, *, details: bool = True) -> Overview:
    """Rows of `runs` against `baseline` (one of them; None = the first that has a result, else the first).

    Where global batches differ, steps are scaled to the baseline's samples: speedup is then samples/s over samples/s.
    Without `details` nothing but the rows given is read: no losses, no queue, no memory limit.
    """
    every = list(runs)
    if not every:
        return Overview([], None, None)
    base = next((run for run in every if baseline and run.pk == baseline.pk), None) or _default_baseline(every)
    specs = {run.pk: RunSpec.model_validate(run.spec) for run in every}
    losses = losses_of(every) if details else {}
    labels = _labels(every)
    waits = _waits(every) if details else {}
    base_step = _scaled(base, specs[base.pk], specs[base.pk])
    rows = []
    for run in every:
        entry = _entry(run, specs[run.pk], labels[run.pk], base, specs[base.pk], base_step, waits)
        equal = _parity(losses, base, run)
        rows.append(Row(run, specs[run.pk], entry, equal, waits.get(run.pk) or run.detail))
    rows.sort(key=_order)
    return Overview(
        rows, next(row for row in rows if row.run.pk == base.pk), _limit(every, specs) if details else None, losses
    )


def _default_baseline(runs: Sequence[Run]) -> Run:
    done = [run for run in runs if run.state == State.SUCCEEDED]
    return min(done or runs, key=lambda run: (run.position, run.pk))


def _labels(runs: Sequence[Run]) -> dict[int, str]:
    """Names; two runs of one name are told apart by their number."""
    names = [run.name for run in runs]
    return {run.pk: f"{run.name} #{run.pk}" if names.count(run.name) > 1 else run.name for run in runs}


def _order(row: Row) -> tuple[int, float, int]:
    rank = {State.SUCCEEDED: 0, State.RUNNING: 1, State.CANCELLING: 1, State.STARTING: 1, State.QUEUED: 2}
    speed = row.entry.result.step.median if row.entry.result and row.entry.done else 0.0
    return (rank.get(State(row.run.state), 3), speed, row.run.position)


def _entry(
    run: Run,
    spec: RunSpec,
    label: str,
    base: Run,
    base_spec: RunSpec,
    base_step: Stats | None,
    waits: Mapping[int, str],
) -> Entry:
    step = _scaled(run, spec, base_spec)
    done = run.state == State.SUCCEEDED
    ideal = ideal_speedup(spec)
    gain = speedup(base_step, step) if step and base_step and (done or run.state not in ENDED) else None
    return Entry(
        label=label,
        family=family(spec),
        recompute=spec.parallel.recompute != "none",
        baseline=run.pk == base.pk,
        result=Result(label, step, ideal, _memory(run), _breakdown(run)) if step else None,
        speed=replace(gain, within_noise=False) if gain and run.pk == base.pk else gain,
        ideal=ideal / ideal_speedup(base_spec),
        others=run.summary.get("cpu_others"),
        done=done,
        status="" if done else _status(run, spec, waits.get(run.pk, "")),
    )


def _status(run: Run, spec: RunSpec, wait: str) -> str:
    """A few words for the row of a run without a final result."""
    if run.state == State.RUNNING:
        return f"running: step {0 if run.step is None else run.step + 1} of {spec.train.steps}"
    if run.state == State.QUEUED:
        return f"queued: {wait}" if wait else "queued"
    return f"{run.state}: {run.detail}" if run.detail else str(run.state)


def _scaled(run: Run, spec: RunSpec, base: RunSpec) -> Stats | None:
    """Seconds a step of the baseline's batch would take at this run's samples/s; of a running run, so far."""
    factor = base.train.global_batch / spec.train.global_batch
    timed = run.summary.get("timed") if run.summary else None
    if timed:
        median, p10, p90, mean = (timed[key] * factor for key in ("median", "p10", "p90", "mean"))
        return Stats(median, p10, p90, mean, timed["n"])
    if run.step_time and run.state not in ENDED:
        value = run.step_time * factor
        return Stats(value, value, value, value, 0)
    return None


def _memory(run: Run) -> dict[str, int] | None:
    memory = run.summary.get("memory") if run.summary else None
    return dict(memory["peak"]) if memory and memory.get("peak") else None


def _breakdown(run: Run) -> Breakdown | None:
    parts = run.summary.get("breakdown") if run.summary else None
    return Breakdown(**parts) if parts else None


def _waits(runs: Sequence[Run]) -> dict[int, str]:
    queued = sorted((run for run in runs if run.state == State.QUEUED), key=lambda run: (run.position, run.pk))
    out = {run.pk: waiting(run).sentence for run in queued[:MAX_WAITS]}
    later = "Waits for the runs of its study in front of it." if queued and queued[0].study_id else ""
    return {**dict.fromkeys((run.pk for run in queued), later), **out}


def _limit(runs: Sequence[Run], specs: Mapping[int, RunSpec]) -> int | None:
    """The smallest memory a rank of these runs may use: a cap of a spec, else the device's own size."""
    caps = [spec.trace.memory_cap for spec in specs.values() if spec.trace.memory_cap]
    if caps:
        return min(caps)
    attempt = Attempt.objects.filter(run__in=[run.pk for run in runs], worker__isnull=False).select_related("worker")
    newest = attempt.order_by("-pk").first()
    sizes = [d.get("memory_total", 0) for d in newest.worker.devices] if newest and newest.worker else []
    return min((size for size in sizes if size), default=None)


def losses_of(runs: Sequence[Run]) -> dict[int, NDArray[np.void]]:
    """run id -> POINT rows of its loss over its first PARITY_STEPS steps; one query for all runs.

    A later attempt's points hold from its first step on.
    """
    chunks = SeriesChunk.objects.filter(
        attempt__run__in=[run.pk for run in runs], name="loss", rank=0, first_step__lt=PARITY_STEPS
    ).order_by("attempt__run", "attempt__number", "first_step")
    out: dict[int, NDArray[np.void]] = {}
    for run, first, data in chunks.values_list("attempt__run", "first_step", "data"):
        before = out.get(run, np.empty(0, POINT))
        out[run] = np.concatenate([before[before["step"] < first], np.frombuffer(bytes(data), POINT)])
    return out


def _parity(losses: Mapping[int, NDArray[np.void]], base: Run, run: Run) -> Parity | None:
    if base.pk not in losses or run.pk not in losses or run.pk == base.pk:
        return None
    a, b = losses[base.pk], losses[run.pk]
    return parity(a["step"], a["value"], b["step"], b["value"])


def held_equal(specs: Sequence[RunSpec], devices: int) -> str:
    """What all specs share, in words: "GPT 4 x 128, sequence 128, batch 16, seed 7, fp32, 2 x CPU"."""
    if not specs:
        return ""
    first = specs[0]
    parts: list[tuple[str, Any]] = [
        (f"GPT {first.model.layers} x {first.model.hidden}", [(s.model.layers, s.model.hidden) for s in specs]),
        (f"sequence {first.model.seq}", [s.model.seq for s in specs]),
        (f"batch {first.train.global_batch}", [s.train.global_batch for s in specs]),
        (f"seed {first.train.seed}", [s.train.seed for s in specs]),
        (first.train.precision, [s.train.precision for s in specs]),
    ]
    shared = [text for text, values in parts if len(set(values)) == 1]
    kind = "GPU" if first.train.device == "cuda" else "CPU"
    return ", ".join([*shared, f"{devices} x {kind}"])
