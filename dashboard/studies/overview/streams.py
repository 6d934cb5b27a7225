"""What a study says about pipelines that never flush: which weights they used, and how long they took to a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dashboard.charts import target as target_chart
from dashboard.charts import versions
from dashboard.charts.chart import Chart
from dashboard.charts.target import Reach, TargetChart
from dashboard.charts.versions import Grid
from dashboard.runs.metrics import left_out
from dashboard.runs.models import ENDED
from dashboard.studies.overview.answers import Answer
from dashboard.studies.overview.entries import taken_of
from dashboard.studies.overview.losses import Points, losses_of, series_of
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.quantities import bytes_beside, bytes_text, percent_text, plural_text, significant
from parallel_core.analysis.target import least, reached, window
from parallel_core.analysis.versions import Use, uses
from parallel_core.schedule import build

KIND = "stashing"
MOST_COLUMNS = 16
"""The most micro-batches in the grid of versions; more could not be read."""


def of_overview(view: Overview, target: float | None) -> tuple[dict[str, Chart], list[Answer]]:
    """The charts `versions` and `target`, and the memory compared with data parallelism; nothing if every run flushes.

    `target` None: the lowest loss that every run reaches. Runs that shared hosts do not race to it.
    """
    streams = [row for row in view.rows if not row.spec.parallel.flushes]
    if not streams:
        return {}, []
    raced = race(view, target)
    made = [_versions(streams), *([] if view.side_by_side else [_raced(view, raced)])]
    return {chart.key: chart for chart in made}, [*_stash_alone(streams, raced), *_against_dp(view, streams)]


def verdict(kind: str, said: Sequence[str], view: Overview, charts: Mapping[str, Chart]) -> list[str]:
    """The sentences `said` of a study of that kind. One of what stashing buys also has the end of the race to a loss
    before those on step times, but after the warnings that are in front of these: its runs update by different rules,
    so the shortest step need not train fastest."""
    raced = charts.get("target")
    if kind != KIND or raced is None or raced.empty or view.base is None or view.open:
        return list(said)
    return [*said[: view.warned_first], raced.title, *said[view.warned_first :]]


def in_list(kind: str, said: Sequence[str], view: Overview) -> list[str]:
    """As `verdict`, of a view that was made without losses."""
    if kind != KIND or view.others_open or all(row.spec.parallel.flushes for row in view.rows) or view.side_by_side:
        return list(said)
    whole = replace(view, losses=losses_of([row.run for row in view.rows]))
    return verdict(kind, said, whole, {"target": _raced(whole, race(whole))})


def below(said: Sequence[str], charts: Mapping[str, Chart]) -> dict[str, Chart]:
    """The charts as they stand below the sentences `said`: the race is not told again by its title."""
    raced = charts.get("target")
    if not isinstance(raced, TargetChart) or raced.title not in said:
        return dict(charts)
    return {**charts, "target": replace(raced, title=raced.rest)}


def _versions(rows: Sequence[Row]) -> Chart:
    """One grid for all runs of a schedule whose micro-batches use the same versions."""
    labels: dict[tuple[str, tuple[Use, ...]], list[str]] = {}
    for row in rows:
        labels.setdefault((row.spec.parallel.schedule, _uses(row)), []).append(row.entry.label)
    return versions.chart(
        [Grid(labels[key], key[1]) for key in sorted(labels)],
        f"the schedules that the ranks walk, first {MOST_COLUMNS} micro-batches at most",
    )


def _uses(row: Row) -> tuple[Use, ...]:
    split = row.spec.parallel
    made = build(row.spec, min(row.spec.train.steps, -(-2 * MOST_COLUMNS // split.per_step)))
    return tuple(use for use in uses(made) if use.micro_batch < MOST_COLUMNS)


class Race(NamedTuple):
    """When each run (`reaches`, by id) reached the loss `goal`; losses are averaged over `over` steps."""

    goal: float | None
    over: int
    reaches: dict[int, Reach]


def _raced(view: Overview, found: Race) -> TargetChart:
    pauses = left_out(row.run for row in view.rows)
    reaches, over = list(found.reaches.values()), found.over * view.losses.every
    chart = target_chart.chart(reaches, found.goal, over, pauses, warned=view.mostly_disturbed)
    return replace(chart, source=", ".join(filter(None, (chart.source, view.losses.part))))


def race(view: Overview, target: float | None = None) -> Race:
    """The race to the loss `target`; None: the lowest one that every run reaches."""
    rows = [row for row in view.rows if not row.entry.ended and len(view.losses.of(row.run))]
    points = {row.run.pk: view.losses.of(row.run) for row in rows}
    over = window(len(own) for own in points.values())
    lows = {pk: least(own["value"], over) if len(own) >= over else None for pk, own in points.items()}
    finite = [low for low in lows.values() if low is not None and np.isfinite(low)]
    goal = target if target is not None else max(finite, default=None)
    ends = {pk: None if goal is None else reached(own["value"], goal, over) for pk, own in points.items()}
    times = series_of([row.run for row in rows if ends[row.run.pk] is not None], "step_time", view.losses)
    reaches = {}
    for row in rows:
        own, at = points[row.run.pk], ends[row.run.pk]
        step, seconds = (None, None) if at is None else (int(own["step"][at]), _seconds(times.of(row.run), own, at))
        entry, taken, goes_on = row.entry, taken_of(row.run), row.run.state not in ENDED
        found = Reach(entry.label, entry.family, lows[row.run.pk], step, seconds, entry.baseline, taken, goes_on)
        split = row.spec.parallel
        often = {split.updates(place) for place in range(split.pp)}
        reaches[row.run.pk] = found._replace(updates=often.pop() if len(often) == 1 else 0)
    return Race(goal, over, reaches)


def _seconds(times: Points, losses: Points, at: int) -> float:
    """Seconds from the first of the losses to that at the index `at`: the sum of `times`, those of the steps between
    them.

    The clock would count the reference work and the checks between steps, too, which a pipeline that never flushes is
    not asked to do. A step whose time is missing takes as long as the others on average.
    """
    first, last = int(losses["step"][0]), int(losses["step"][at])
    known = times["value"][(times["step"] > first) & (times["step"] <= last)]
    return float(known.mean()) * (last - first) if len(known) else float(losses["time"][at] - losses["time"][0])


def _stash_alone(streams: Sequence[Row], raced: Race) -> list[Answer]:
    """What keeping the weights of a forward for its backward changes, all else equal: the steps to the loss, and
    memory; [] without two such runs that reach it."""
    plain = {_but_schedule(row): row for row in streams if row.spec.parallel.schedule == "1f1b-naive"}
    for row in streams:
        other = plain.get(_but_schedule(row)) if row.spec.parallel.schedule == "1f1b-stash" else None
        steps = [raced.reaches[one.run.pk].step if one.run.pk in raced.reaches else None for one in (row, other) if one]
        if other is None or None in steps or raced.goal is None:
            continue
        detail = f"to loss {significant(raced.goal, 4)}: {row.entry.label}; {other.entry.label} needs {steps[1]}."
        if _memory(row) and _memory(other):
            stashed, plain_one = _memory(row), _memory(other)
            detail += f" Worst rank: {bytes_beside(stashed, plain_one)} instead of {bytes_beside(plain_one, stashed)}."
        return [Answer("Stashing alone", plural_text(steps[0] or 0, "step"), detail, "target")]
    return []


def _but_schedule(row: Row) -> str:
    """Equal for runs that differ in nothing but their schedule."""
    split = row.spec.parallel.model_copy(update={"schedule": ""})
    return row.spec.model_copy(update={"parallel": split}).model_dump_json()


def _against_dp(view: Overview, streams: Sequence[Row]) -> list[Answer]:
    """Memory on the worst rank of the pipeline that keeps most versions, compared with data parallelism."""
    dp = next((row for row in view.rows if row.entry.family == "dp" and _memory(row)), None)
    known = [row for row in streams if _memory(row)]
    if dp is None or not known:
        return []
    most = max(known, key=_memory)
    share, devices = _memory(most) / _memory(dp), most.run.devices
    detail = (
        f"{most.entry.label} with {bytes_text(_memory(most))} on its worst rank, {dp.entry.label} with "
        f"{bytes_text(_memory(dp))}; {devices} devices."
    )
    return [Answer("Memory against DP", percent_text(share), detail, "memory")]


def _memory(row: Row) -> int:
    return (row.entry.compared.memory_total if row.entry.compared else None) or 0
