"""Writes: a profile is asked for and answered; a prediction is made before its run and settled by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.utils import timezone

from dashboard.accounts.guards import MAY_NOT_SUBMIT
from dashboard.accounts.roles import may_submit
from dashboard.charts.theme import DISTURBED_ABOVE
from dashboard.fleet.models import Worker
from dashboard.ledger import replays, selectors
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.runs.models import Run, State
from parallel_core.plan.memory import worst_stage
from parallel_core.profile.order import measured_with
from parallel_core.profile.table import CostTable, CostTableError
from parallel_core.spec import RunSpec

MAX_ERROR = 400


def ask_profile(*, worker: Worker, spec: RunSpec, user: Any) -> Profile:
    """The worker is asked with each of its heartbeats until it answers; if it waits for a request that measures all of
    this, that is the one. Raises PermissionDenied for viewers."""
    if not may_submit(user):
        raise PermissionDenied(MAY_NOT_SUBMIT)
    key = selectors.profile_key(spec)
    asked = Profile.objects.filter(worker=worker, key=key, state=ProfileState.ASKED)
    waiting = next((one for one in asked if measured_with(spec, RunSpec.model_validate(one.spec))), None)
    return waiting or Profile.objects.create(worker=worker, spec=spec.model_dump(mode="json"), key=key, asked_by=user)


def answer_profile(worker: str, body: Mapping[str, Any]) -> None:
    """What the worker said: a table, or why there is none. A second answer, or one of another worker, is ignored."""
    profile = Profile.objects.filter(pk=body["profile"], worker__name=worker, state=ProfileState.ASKED).first()
    if profile is None:
        return
    try:
        table = CostTable.parse(json.dumps(body["table"])) if "table" in body else None
    except CostTableError as error:
        table, body = None, {**body, "error": str(error)}
    profile.state = ProfileState.DONE if table else ProfileState.FAILED
    profile.table, profile.software = (table.dump(), table.software) if table else ({}, "")
    profile.error = "" if table else str(body.get("error", "it gave no reason"))[:MAX_ERROR]
    profile.done_at = timezone.now()
    profile.save()


def predict(run: Run) -> Prediction:
    """Written in the transaction that queues the run; what another run's replay says of it comes from the analyst."""
    spec = RunSpec.model_validate(run.spec)
    found = selectors.predicted(spec)
    memory = worst_stage(spec).total if spec.trace.memory and spec.parallel.world <= selectors.MOST_RANKS else None
    return Prediction.objects.create(
        run=run,
        profile=found.profile,
        seconds=found.seconds,
        to_replay=replays.conceivable(spec),
        memory=memory,
    )


def _spread(run: Run) -> bool:
    """Whether its newest attempt was on several hosts."""
    newest = run.attempts.order_by("-number").first()
    return newest is not None and len(newest.devices) > 1


def settle(run: Run, summary: Mapping[str, Any]) -> None:
    """Holds the run's own numbers against what was said; a later call, with more data arrived, replaces them.

    A run that did not succeed, or was broken on purpose, settles nothing. One whose ranks were on several hosts counts
    as disturbed: its step went through links that no profile has measured.
    """
    if run.state != State.SUCCEEDED or run.broken:
        return
    timed, memory, others = summary.get("timed"), summary.get("memory"), summary.get("cpu_others")
    said = Prediction.objects.filter(run=run)
    profile = Profile.objects.filter(prediction__run=run).defer("table").first()
    references = summary.get("references") or ()
    said.update(
        measured_seconds=timed["median"] if timed else None,
        paced_seconds=selectors.paced(RunSpec.model_validate(run.spec), profile, references) if profile else None,
        measured_memory=memory["peak_total"] if memory else None,
        disturbed=(others is not None and others > DISTURBED_ABOVE) or _spread(run),
        settled_at=timezone.now(),
    )
