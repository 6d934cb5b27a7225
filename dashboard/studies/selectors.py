"""What pages of studies and comparisons show of a set of runs: one row a run against a baseline, and sentences on them.

Only run rows, their summaries and the loss series are read here; spans are read by the figures that draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard.runs.models import Run, State
from dashboard.runs.places import Place, places_of
from dashboard.studies.comparability import same_updates
from dashboard.studies.contents import told_apart
from dashboard.studies.overview import by_loss, excluded, peaks
from dashboard.studies.overview.by_loss import Ranking
from dashboard.studies.overview.entries import Setting, drift_of, entry_of, own_step, shared_room, waits_of
from dashboard.studies.overview.labels import labels_of, readable
from dashboard.studies.overview.losses import Losses, losses_of
from dashboard.studies.overview.names import shortened
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.parity import Parity, parity
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec


def overview(
    runs: Iterable[Run],
    baseline: Run | None = None,
    *,
    details: bool = True,
    places: Mapping[int, Place] | None = None,
    ranked: bool = False,
) -> Overview:
    """Rows of `runs` against `baseline` (one of them; None = the first with a result, else the first).

    If global batches differ, steps are scaled to the baseline's samples: a speedup is samples/s over samples/s. Without
    `details` only the given rows are read: no losses, no queue, no memory limit. `places`: see `places_of`; None = read
    here. `ranked`: by their loss, where runs differ in how they train.
    """
    every = list(runs)
    if not every:
        return Overview([], None, None)
    base = next((run for run in every if baseline and run.pk == baseline.pk), None) or _default_baseline(every)
    specs = told_apart({run.pk: RunSpec.stored(run.spec) for run in every}, every)
    losses = losses_of(every) if details else Losses()
    whole = labels_of(every, specs)
    labels = readable(whole)
    short = shortened(labels.values())
    setting = _setting(base, every, specs, details, places_of(every) if places is None else places)
    meters = peaks.over_one_peak(every) if details else {}
    rows = []
    for run in every:
        entry = entry_of(run, specs[run.pk], labels[run.pk], setting, short, whole[run.pk])
        equal = _parity(losses, base, run) if same_updates(specs[base.pk], specs[run.pk]) else None
        why = setting.waits.get(run.pk) or run.detail
        alike = specs[run.pk].model.kind == specs[base.pk].model.kind
        rows.append(Row(run, specs[run.pk], entry, equal, why, meters.get(run.pk, {}), alike))
    ranking = by_loss.ranking(every, specs) if ranked else None
    rows.sort(key=lambda row: _order(row, ranking))
    own = next(row for row in rows if row.run.pk == base.pk)
    return Overview(rows, own, setting.room, losses, setting.places, ranking)


def _setting(
    base: Run, runs: Sequence[Run], specs: Mapping[int, RunSpec], details: bool, places: Mapping[int, Place]
) -> Setting:
    spec = specs[base.pk]
    return Setting(
        base=base,
        base_spec=spec,
        base_step=None if excluded.ended_of(base) else own_step(base, details),
        waits=waits_of(runs) if details else {},
        room=shared_room(runs, specs) if details else None,
        details=details,
        cores=base.study.shared_cores if base.study else 0,
        drift=drift_of(runs, base),
        places=places,
    )


def _default_baseline(runs: Sequence[Run]) -> Run:
    done = [run for run in runs if run.state == State.SUCCEEDED]
    return min(done or runs, key=lambda run: (run.position, run.pk))


def _order(row: Row, ranking: Ranking | None) -> tuple[int, by_loss.Order, float, int]:
    rank = {State.SUCCEEDED: 0, State.RUNNING: 1, State.CANCELLING: 1, State.STARTING: 1, State.QUEUED: 2}
    speed = row.entry.result.step.median if row.entry.result and row.entry.done else 0.0
    place = ranking.order(row.run) if ranking and row.entry.done else (0, 0.0)
    return (rank.get(State(row.run.state), 3), place, speed, row.run.position)


def _parity(losses: Losses, base: Run, run: Run) -> Parity | None:
    if base.pk not in losses.held or run.pk not in losses.held or run.pk == base.pk:
        return None
    a, b = losses.held[base.pk], losses.held[run.pk]
    return parity(a["step"], a["value"], b["step"], b["value"])


def held_equal(specs: Sequence[RunSpec], devices: int) -> str:
    """What all specs share, in words: "GPT 4 x 128, sequence 128, batch 16, seed 7, fp32, 2 x CPU"."""
    if not specs:
        return ""
    first = specs[0]
    text = "seq" in outline_of(first.model).fields
    parts: list[tuple[str, Any]] = [
        (outline_of(first.model).title, [outline_of(s.model).title for s in specs]),
        *([(f"sequence {first.model.seq}", [s.model.seq for s in specs])] if text else []),
        (f"batch {first.train.global_batch}", [s.train.global_batch for s in specs]),
        (f"seed {first.train.seed}", [s.train.seed for s in specs]),
        (first.train.precision, [s.train.precision for s in specs]),
    ]
    shared = [text for text, values in parts if len(set(values)) == 1]
    kind = "GPU" if first.train.device == "cuda" else "CPU"
    return ", ".join([*shared, f"{devices} x {kind}"])
