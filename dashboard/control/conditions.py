"""Under which conditions the timed steps of a run were measured: what other processes used of its devices, and how fast
these were.

The step times of a run are those of all its attempts. An attempt that ends reports its conditions in its ranks'
summaries, one that is cut off does not; but every rank emits them as series while it trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboard.runs import metrics
from dashboard.runs.models import Run
from dashboard.runs.tracing import timed_steps
from parallel_core.profile.repeats import expected

Summaries = Mapping[int, Mapping[str, Any]]
"""The summary of each rank of the newest attempt; {} if it sent none."""


def conditions(run: Run, newest: int, summaries: Summaries) -> dict[str, Any]:
    """`cpu_others`, `others_missing`, `other_processes`, `references` and `company` of a run's summary
    (`summary.summarise`); `newest` = number of the newest attempt."""
    timed = timed_steps.timed_by_attempt(run)
    found = {**_reported_others(summaries), **_reported_pace(run, summaries)}
    if set(timed) <= {newest}:
        return found
    return found | _others(run, timed, newest, summaries) | {"references": _references(run, set(timed))}


def _reported_others(summaries: Summaries) -> dict[str, Any]:
    known = [value for one in summaries.values() if (value := one.get("cpu_others")) is not None]
    processes = [count for one in summaries.values() if (count := one.get("other_processes")) is not None]
    others = {"cpu_others": max(known, default=None), "others_missing": False}
    return {**others, "other_processes": max(processes, default=None)}


def _reported_pace(run: Run, summaries: Summaries) -> dict[str, Any]:
    found = [one["reference"] for _, one in sorted(summaries.items()) if "reference" in one]
    references = [reference["seconds"] for reference in found]
    company = [reference["company"] for reference in found if reference.get("company")]
    return {
        "references": references if len(references) == run.devices else [],
        "company": sum(company) / len(company) if company else None,
    }


def _others(run: Run, timed: Mapping[int, np.ndarray], newest: int, summaries: Summaries) -> dict[str, Any]:
    """The mean of the attempts' shares, each weighted by the seconds of its timed steps; unknown if one is."""
    shares = {number: _share(run, number, int(points["step"][-1])) for number, points in timed.items()}
    if newest in shares and (reported := _reported_others(summaries)["cpu_others"]) is not None:
        shares[newest] = reported
    known = {number: share for number, share in shares.items() if share is not None}
    if len(known) == len(shares):
        weights = [float(timed[number]["value"].sum()) for number in known]
        return {"cpu_others": float(np.average(list(known.values()), weights=weights))}
    never = not known and bool(summaries)  # not even an attempt that came to its end could measure it
    on_cpu = run.spec.get("train", {}).get("device", "cpu") == "cpu"
    return {"cpu_others": None, "others_missing": on_cpu and not never}


def _share(run: Run, attempt: int, step: int) -> float | None:
    """The share that others had used up to `step` of the device that they used most; None if a rank did not say."""
    each = [metrics.last_until(run, attempt, "cpu_others", rank, step) for rank in range(run.devices)]
    known = [share for share in each if share is not None]
    return max(known) if len(known) == run.devices else None


def _references(run: Run, attempts: set[int]) -> list[float]:
    """Seconds of the reference work by rank over all these attempts; [] unless all ranks measured it in each."""
    if not all(attempts <= metrics.attempts_with(run, "reference_time", rank) for rank in range(run.devices)):
        return []
    return [expected(metrics.series(run, "reference_time", rank).value) for rank in range(run.devices)]
