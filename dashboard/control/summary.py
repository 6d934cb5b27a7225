"""Computes a run's summary once it has ended, and keeps it in its row, for pages that would have to read all its
points."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Q

from dashboard.control.conditions import conditions
from dashboard.control.suspects import UNREACHABLE
from dashboard.ledger import services as ledger
from dashboard.live.announce import announce
from dashboard.one_look import one_look
from dashboard.runs import selectors, skips
from dashboard.runs.generation import generated_text
from dashboard.runs.memory_limits import device_memory
from dashboard.runs.models import ENDED, RankInfo, Run
from dashboard.runs.reads import read_by
from parallel_core.analysis.breakdown import mean
from parallel_core.analysis.meters import Work
from parallel_core.analysis.stats import Stats
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)


def unsummarised(run: int | None = None) -> set[int]:
    """Ids of ended runs, or of this one alone, without a summary, or with an outdated one: they have just ended, or a
    controller was killed, or lost the database, right after their end or after more data had arrived."""
    due = Run.objects.filter(Q(summary={}) | Q(summary__outdated=True), state__in=ENDED, attempts__isnull=False)
    return set((due if run is None else due.filter(pk=run)).values_list("pk", flat=True))


def outdate(pk: int) -> None:
    """Notes in the summary of an ended run that more data has arrived, inside the caller's transaction: nothing else
    would remember it. It is shown until `store_summary` replaces it."""
    found = Run.objects.filter(pk=pk, state__in=ENDED)
    for summary in found.exclude(summary={}).values_list("summary", flat=True):
        found.update(summary={**summary, "outdated": True})


def store_summary(pk: int) -> None:
    """Computes and stores the summary of an ended run. A later call, after more data has arrived, replaces it."""
    run = Run.objects.filter(pk=pk, state__in=ENDED).first()
    if run is None:
        return
    with one_look():  # it reads attempts and curves for several of its values
        summary = {**generated_text.summary(run), "memory": _worst_memory(run)} if run.task else summarise(run)
    changes: dict[str, Any] = {"summary": summary}
    if summary["timed"]:
        changes["step_time"] = summary["timed"]["median"]
    if rate := _rate(summary):
        changes["tokens_per_s"] = rate
    with transaction.atomic():  # a summary that is there is not computed again to settle the prediction
        Run.objects.filter(pk=pk).update(**changes)
        if not run.task:
            _settle(run, summary)
        announce(pk, run.study_id, "summary")


def _rate(summary: Mapping[str, Any]) -> float | None:
    """Tokens a second at the median step, as the step time is; of a text, all its tokens over its time."""
    if made := summary.get("generation"):
        overall: float | None = made["overall_tokens_per_s"]
        return overall
    rate: float | None = (summary.get("meters") or {}).get("tokens_per_s")
    return rate


def _settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Settles the run's prediction, inside the caller's transaction. One that fails to be settled stays open, and takes
    no summary along: only an error of UNREACHABLE is raised."""
    try:
        with transaction.atomic():
            ledger.settle(run, summary)
    except UNREACHABLE:
        raise
    except Exception:
        log.exception("could not settle the prediction of run %s", run.pk)


def summarise(run: Run) -> dict[str, Any]:
    """Returns the summary of a run that trains. What was not measured is None unless stated otherwise.

    - timed: Stats of the timed steps, seconds.
    - cpu_others: share of its device that others used in the timed steps, on the worst rank.
    - others_missing: True if it is not known for an attempt that made some of the timed steps.
    - other_processes: how many others were on one of its GPUs as the timed steps of its newest attempt began or ended.
    - memory: of the rank with the highest peak, bytes; and `device`, the memory of the smallest of its devices.
    - breakdown: mean over the ranks of the traced step nearest the median, ns, with the forward part of
      its compute; breakdown_step: that step.
    - meters: tokens_per_s, tflops (a device), mfu and hfu at the median step, peak_flops_per_s of all devices,
      peak_source, and peak_devices: how many devices that is, fewer than ranks where these share some.
    - fingerprint: see observe.records.
    - staleness: {stage: {mean, max}} in updates; {} for schedules that flush.
    - references: seconds of the reference work by rank; [] unless all ranks measured it.
    - company: how many times longer it took than on one device alone, mean over the ranks.
    - final_loss: the last loss; None if it is not finite.
    - held_out: {step, loss} of the last evaluation of held-out samples, and `best`, the same of that with the lowest
      loss; None if there was none, or if the last one is not finite.
    - reads: see `read_by`.
    - params_total: number of parameters.
    - skipped: [how many updates were skipped, of how many], where fp16 skipped any.
    """
    timed = selectors.timed(run)
    infos = selectors.ranks(run)
    summaries = [info.summary for _, info in sorted(infos.items())]
    typical = selectors.find_typical_step(run)
    return {
        "timed": asdict(timed) if timed else None,
        "memory": _worst_memory(run),
        "breakdown": _breakdown(run, typical),
        "meters": _meters(run, summaries, timed),
        "breakdown_step": typical,
        "fingerprint": next((s["fingerprint"] for s in summaries if s.get("fingerprint")), None),
        "staleness": _staleness(run),
        **_conditions(run, infos),
        "final_loss": _final_loss(run),
        "held_out": _held_out(run),
        "reads": read_by(run),
        "params_total": next((s["params_total"] for s in summaries if s.get("params_total")), None),
        "skipped": list(found) if (found := skips.skipped(run))[0] else None,
    }


def _conditions(run: Run, infos: Mapping[int, RankInfo]) -> dict[str, Any]:
    """See `conditions.conditions`."""
    newest = selectors.attempt_of(run)
    reported = {rank: info.summary for rank, info in infos.items() if info.summary}
    return conditions(run, newest.number if newest else 0, reported)


def _final_loss(run: Run) -> float | None:
    values = selectors.series(run, "loss").value
    return float(values[-1]) if len(values) and math.isfinite(values[-1]) else None


def _held_out(run: Run) -> dict[str, Any] | None:
    found = selectors.series(run, "eval_loss")
    if not len(found.value) or not math.isfinite(found.value[-1]):
        return None
    last, best = (
        {"step": int(found.step[at]), "loss": float(found.value[at])} for at in (-1, int(np.nanargmin(found.value)))
    )
    return {**last, "best": best}


def _staleness(run: Run) -> dict[str, dict[str, float]]:
    """By stage, from its first rank: the stage's replicas and tensor ranks have the same staleness."""
    found: dict[str, dict[str, float]] = {}
    for info in selectors.ranks(run).values():
        late, stage = info.summary.get("staleness"), info.hello.get("stage")
        if late is not None and stage is not None:
            found.setdefault(str(stage), late)
    return found


def _meters(run: Run, summaries: list[dict[str, Any]], timed: Stats | None) -> dict[str, Any] | None:
    if timed is None or not timed.median > 0:
        return None
    peak = next((s["peak"] for s in summaries if s.get("peak")), None) or {}
    speeds = Work.of(RunSpec.stored(run.spec)).speeds(timed.median, peak.get("flops_per_s"))
    about = {f"peak_{name}": peak.get(name) for name in ("flops_per_s", "source", "devices")}
    shares = {} if peak else {name: _median(run, name) for name in ("mfu", "hfu")}
    return {"mfu": None, "hfu": None, **shares, **speeds, **about}


def _median(run: Run, name: str) -> float | None:
    """The median of a series over the timed steps; None if it has no points there.

    An attempt that had nothing left to train reports no peak; the points of the attempt before it were made with one.
    """
    values = selectors.timed_values(run, name)
    return float(np.median(values)) if len(values) else None


def _worst_memory(run: Run) -> dict[str, Any] | None:
    worst = selectors.worst_memory(run)
    if worst is None:
        return None
    return {
        "rank": worst.rank,
        "peak_total": worst.peak_total,
        "peak": worst.peak,
        "final": worst.final,
        "rss_delta": worst.rss_delta,
        "device": device_memory(run, selectors.attempt_of(run)),
    }


def _breakdown(run: Run, step: int | None) -> dict[str, Any] | None:
    try:
        parts = selectors.breakdown(run, step)
    except (ValueError, KeyError, IndexError) as error:
        # Spans of a run that died in the middle of a step may be inconsistent; its other numbers still hold.
        log.warning("no breakdown of run %s: %r", run.pk, error)
        return None
    return mean(parts.values()).stored() if parts else None
