"""Writes: profiles are requested and answered; predictions are made before runs and settled by them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone

from dashboard.accounts.guards import MAY_NOT_SUBMIT
from dashboard.accounts.roles import may_change, may_submit
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import host_links, replays, selectors
from dashboard.ledger.models import WITHDRAWN, Prediction, Profile, ProfileState
from dashboard.live.announce import announce
from dashboard.runs.models import Run, State
from dashboard.runs.waiting import spreading
from dashboard.runs.waiting.asking import requests
from parallel_core.analysis.disturbance import is_quiet
from parallel_core.analysis.quantities import listed_text
from parallel_core.plan.memory import counted, worst_stage
from parallel_core.profile.request import measured_with, other_kernels
from parallel_core.profile.table import CostTable, CostTableError
from parallel_core.spec import RunSpec

MAX_ERROR, MAX_LOG = 400, 16_000
MAY_NOT_WITHDRAW = "Only the person who asked for a profile and admins may withdraw the request."


def ask_profile(*, worker: Worker, spec: RunSpec, user: Any) -> Profile:
    """Requests a profile, which the worker is asked for with each heartbeat until it answers.

    If an unanswered request measures all of this, that one is returned. Raises PermissionDenied for viewers.
    """
    if not may_submit(user):
        raise PermissionDenied(MAY_NOT_SUBMIT)
    key = selectors.profile_key(spec)
    asked = Profile.objects.filter(worker=worker, key=key, state=ProfileState.ASKED)
    waiting = next((one for one in asked if measured_with(spec, RunSpec.stored(one.spec))), None)
    return waiting or Profile.objects.create(worker=worker, spec=spec.model_dump(mode="json"), key=key, asked_by=user)


def withdraw_profile(profile: Profile, user: Any) -> bool:
    """Withdraws a request; returns whether it still waited. A worker that is working on it stops once its next
    heartbeat is answered.

    Raises PermissionDenied for anyone but the person who asked and admins.
    """
    if not may_change(user, profile):
        raise PermissionDenied(MAY_NOT_WITHDRAW)
    waiting = Profile.objects.filter(pk=profile.pk, state=ProfileState.ASKED)
    error = f"{WITHDRAWN}{user}."[:MAX_ERROR]
    changed = waiting.update(state=ProfileState.FAILED, error=error, done_at=timezone.now())
    announce(None, None, "fleet")
    return bool(changed)


def answer_profile(worker: str, body: Mapping[str, Any]) -> None:
    """Stores a worker's answer: a table, or why there is none. A second answer, or another worker's, is ignored.

    Workers of older versions always measure the usual kernels; a run with deterministic ones cannot use that table.
    """
    profile = Profile.objects.filter(pk=body["profile"], worker__name=worker, state=ProfileState.ASKED).first()
    if profile is None:
        return
    try:
        table = CostTable.parse(json.dumps(body["table"])) if "table" in body else None
    except CostTableError as error:
        table, body = None, {**body, "error": str(error)}
    if table is not None and table.deterministic != other_kernels(RunSpec.stored(profile.spec)):
        table, body = None, {"error": f"{worker} is too old to profile deterministic kernels; update it and ask again."}
    profile.state = ProfileState.DONE if table else ProfileState.FAILED
    profile.table, profile.software = (table.dump(), table.software) if table else ({}, "")
    profile.error = "" if table else str(body.get("error", "it gave no reason"))[:MAX_ERROR]
    profile.log = "" if table else str(body.get("log", ""))[-MAX_LOG:]
    profile.done_at = timezone.now()
    profile.save()


def predictions(runs: Sequence[Run]) -> list[Prediction]:
    """The predictions of runs that are about to be queued, to be written with them. Neither need be saved yet.

    Runs of one spec on the same hosts are simulated once. Predictions by replay are made later by the analyst.
    """
    if not runs:
        return []
    specs = [RunSpec.stored(run.spec) for run in runs]
    fleet, sources = FleetSnapshot.now(), selectors.Sources(specs)
    known: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    made = []
    for run, spec, request in zip(runs, specs, requests(list(runs)), strict=True):
        workers = spreading.chosen(request, fleet)
        key = spec.model_dump_json(), tuple(workers)
        if key not in known:
            known[key] = _predicted(spec, workers, sources)
        made.append(Prediction(run=run, **known[key]))
    return made


def _predicted(spec: RunSpec, workers: list[str], sources: selectors.Sources) -> dict[str, Any]:
    """The fields of a prediction for ranks that are expected on `workers`."""
    found = sources.predicted(spec, workers)
    likely = found.likely
    told = spec.trace.memory and spec.parallel.world <= selectors.MOST_RANKS and counted(spec)
    memory = worst_stage(spec).total if told else None
    return {
        "profile": found.profile,
        "hosts": spreading.several(workers),
        "seconds": found.seconds,
        "low_seconds": likely.low if likely else None,
        "high_seconds": likely.high if likely else None,
        "earlier": likely.earlier if likely else None,
        "to_replay": replays.conceivable(spec),
        "memory": memory,
    }


def _elsewhere(said: Prediction, hosts: Sequence[str]) -> str:
    """Says that a run whose ranks were on `hosts` ([]: on one) was predicted on others; '' if it was not."""
    here, there = listed_text(sorted(set(hosts))), listed_text(sorted(set(said.hosts)))
    if _grouping(hosts) == _grouping(said.hosts):
        return ""
    if not hosts:
        return f"It was predicted over {there}, and ran on one host."
    return f"It was predicted {f'over {there}' if said.hosts else 'on one host'}, and ran over {here}."


def _untimed(said: Prediction, hosts: Sequence[str], kind: str) -> str:
    """Why a step over these `hosts` was not predicted: nobody timed their links; '' if it was, or they are known."""
    if not hosts or said.seconds is not None:
        return ""
    known = {frozenset(found.hosts) for found in host_links.known(hosts, kind)}
    missing = [pair for pair in host_links.pairs_of(hosts) if frozenset(pair) not in known]
    return f"The links between {listed_text(missing[0])} were never timed: time them on Fleet." if missing else ""


def _grouping(hosts: Sequence[str]) -> tuple[frozenset[str], list[int]]:
    """Which hosts, and which ranks share one; the order of the hosts does not matter."""
    order = list(dict.fromkeys(hosts))
    return frozenset(order), [order.index(host) for host in hosts]


def _of_another(profile: Profile | None, workers: Sequence[str]) -> str:
    """Why a run on `workers` does not settle a prediction from `profile`: none of them was profiled; '' if it does."""
    if profile is None or not workers or profile.worker.name in workers:
        return ""
    here = listed_text(sorted(set(workers)))
    return f"It was predicted from the profile of {profile.worker.name}, and ran on {here}."


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Compares the run's measurements with its prediction; a later call, after more data has arrived, replaces the
    result.

    A run that failed or was broken on purpose settles nothing. One whose disturbance is not known for all of its timed
    steps counts as disturbed. The time is not counted if the ranks were on other hosts
    than predicted or profiled, or on hosts whose links nobody had measured. What a replay predicted counts on any host
    that was predicted, and is dropped if the replayed run was on another host.
    """
    said = Prediction.objects.filter(run=run).first()
    if run.state != State.SUCCEEDED or run.injected or said is None:
        return
    timed, memory = summary.get("timed"), summary.get("memory")
    workers = spreading.workers_of(run.attempts.order_by("-number").first())
    hosts = spreading.several(workers)
    profile = Profile.objects.filter(prediction__run=run).select_related("worker").defer("table").first()
    elsewhere, device = _elsewhere(said, hosts), RunSpec.stored(run.spec).train.device
    left_out = elsewhere or _untimed(said, hosts, device) or _of_another(profile, workers)
    noisy = not is_quiet(summary) or run.shares_hosts
    if replays.from_elsewhere(said, workers):
        Prediction.objects.filter(pk=said.pk).update(replayed=None, replayed_seconds=None)
    Prediction.objects.filter(pk=said.pk).update(
        measured_seconds=timed["median"] if timed else None,
        paced_seconds=selectors.paced(run, profile, hosts) if profile and not left_out else None,
        measured_memory=memory["peak_total"] if memory else None,
        disturbed=noisy or bool(left_out),
        left_out="" if noisy else left_out,
        elsewhere=bool(elsewhere),
        settled_at=timezone.now(),
    )
