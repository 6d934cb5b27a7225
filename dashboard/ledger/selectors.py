"""Reads: what can be predicted for a run before it starts. How accurate predictions were so far is in `records`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from dashboard.ledger import host_links
from dashboard.ledger.models import WITHDRAWN, LinksBetween, Prediction, Profile, ProfileState
from dashboard.ledger.ranges import Earlier, Range
from dashboard.ledger.simulated import simulated, table_of
from dashboard.one_look import read_once
from dashboard.runs import metrics
from dashboard.runs.models import Attempt, Run
from dashboard.runs.waiting.spreading import several
from parallel_core.analysis.quantities import count_text
from parallel_core.known_fields import without_unknown
from parallel_core.profile.request import other_kernels
from parallel_core.simulate.device_drift import spells_beside
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import operations, predict_step
from parallel_core.spec import RunSpec

MOST_RANKS = 64
"""Runs of more ranks are not predicted while somebody waits."""
MOST_OPERATIONS = 4_000
"""Runs with steps of more compute operations are not predicted while somebody waits: about 1 s."""
USUAL_OF = 5
"""How many profiles the usual duration of a profile is computed from."""


@dataclass(frozen=True)
class Predicted:
    """`seconds` a step by `profile` and their `likely` range, or `why_not`: there is no profile of the model
    (`unprofiled`), or nobody timed the links between the two hosts in `untimed`."""

    seconds: float | None = None
    profile: Profile | None = None
    likely: Range | None = None
    why_not: str = ""
    untimed: tuple[str, str] | None = None
    unprofiled: bool = False


ASKED_AT_MOST = 4
"""How many profiles of one model a prediction tries, newest first."""


def profile_key(spec: RunSpec) -> str:
    """A hash that is equal for runs that one profile serves: same model, precision, kind of device and kernels."""
    # A later field at its default is left out, as the keys of stored profiles do not have it.
    model = without_unknown({"model": spec.model.model_dump(mode="json")}, ())["model"]
    what: list[Any] = [model, spec.train.precision, spec.train.device]
    what += ["deterministic"] if other_kernels(spec) else []  # the others keep the keys of their stored profiles
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def asked(worker: str) -> QuerySet[Profile]:
    """Profiles that this worker still has to make, oldest first."""
    return Profile.objects.filter(worker__name=worker, state=ProfileState.ASKED).order_by("id")


def last_failure() -> Profile | None:
    """The newest failed profile whose worker has not profiled that model since; one that was withdrawn has not
    failed."""
    return _unanswered().exclude(error__startswith=WITHDRAWN).first()


def last_withdrawn() -> Profile | None:
    """The newest unanswered profile if it was withdrawn, else None."""
    newest = _unanswered().first()
    return newest if newest is not None and newest.withdrawn else None


def _unanswered() -> QuerySet[Profile]:
    """Profiles that were withdrawn or failed and whose worker has not profiled that model since, newest first."""
    after = Profile.objects.filter(key=OuterRef("key"), worker=OuterRef("worker"), pk__gt=OuterRef("pk"))
    failed = Profile.objects.filter(~Exists(after.filter(state=ProfileState.DONE)), state=ProfileState.FAILED)
    return failed.select_related("worker")


def in_front(attempt: Attempt) -> QuerySet[Profile]:
    """Profiles that were requested of the attempt's hosts before it was sent there: its ranks start once they have
    ended.

    A profile that was requested later waits for the attempt.
    """
    names = [node["worker"] for node in attempt.devices]
    return Profile.objects.filter(worker__name__in=names, asked_at__lt=attempt.sent_at)


def usual_wait(worker: str) -> float | None:
    """Median seconds from a request for a profile to this worker's answer, over the newest; None before the first."""
    done = Profile.objects.filter(worker__name=worker, state=ProfileState.DONE, base=None, done_at__isnull=False)
    took = done.order_by("-done_at").values_list("asked_at", "done_at")[:USUAL_OF]
    return median((end - begin).total_seconds() for begin, end in took if end) if took else None


def measured(most: int = 12) -> list[tuple[str, str]]:
    """Returns (id, name) of the newest finished profiles, newest first: the clusters of this yard whose costs are
    known."""
    done = Profile.objects.filter(state=ProfileState.DONE).select_related("worker").defer("table")
    return [(str(profile.pk), str(profile)) for profile in done.order_by("-done_at")[:most]]


def waiting() -> list[Profile]:
    """Requested profiles that no worker has answered yet, oldest first."""
    return list(Profile.objects.filter(state=ProfileState.ASKED).select_related("worker").order_by("id"))


def where(spec: RunSpec, hosts: Sequence[str]) -> Where:
    """Where a run's ranks are: on `hosts` ([]: all on one), with the newest measurements of the links between them."""
    return Where(hosts, host_links.known(hosts, spec.train.device)) if hosts else ALONE


class Sources:
    """What runs are predicted from, read once for all of them: the newest profiles of their models, and the links."""

    def __init__(self, specs: Iterable[RunSpec]) -> None:
        keys = {profile_key(spec) for spec in specs}
        self._profiles: dict[str, list[Profile]] = {}
        done = Profile.objects.filter(key__in=keys, state=ProfileState.DONE).select_related("worker").defer("table")
        for profile in done.order_by("-done_at") if keys else ():
            self._profiles.setdefault(profile.key, []).append(profile)
        self._earlier = Earlier()

    @cached_property
    def _links(self) -> list[LinksBetween]:
        return host_links.newest()

    def predicted(self, spec: RunSpec, workers: Sequence[str] = ()) -> Predicted:
        """Predicts by the newest profile of the model that has what the run needs; some lack the way in which it is
        split.

        `workers` = the worker of each rank, if it is known: their own profiles come before those of other hosts.
        """
        if spec.inject:
            return Predicted(why_not="what is broken on purpose is not predicted")
        if spec.parallel.world > MOST_RANKS:
            return Predicted(why_not=f"runs of more than {MOST_RANKS} ranks are not simulated here")
        if (count := operations(spec)) > MOST_OPERATIONS:
            return Predicted(
                why_not=f"steps of more than {count_text(MOST_OPERATIONS)} operations are not simulated here; "
                f"this one has about {count_text(count)}"
            )
        hosts = several(workers)
        place = Where(hosts, host_links.tables_of(self._links, hosts, spec.train.device)) if hosts else ALONE
        profiles = sorted(self._profiles.get(profile_key(spec), ()), key=lambda own: own.worker.name not in workers)
        if not profiles:
            return Predicted(why_not="no worker has profiled this model", unprofiled=True)
        why_not, untimed = "", None
        for i, profile in enumerate(profiles[:ASKED_AT_MOST]):
            step = simulated(spec, profile, place)
            if step.seconds is not None:
                likely = self._earlier.range(spec, profile, step.seconds, len(set(hosts)) or 1)
                return Predicted(step.seconds, profile, likely or (Range(*step.likely) if step.likely else None))
            if i == 0:
                why_not, untimed = step.why_not, step.untimed
        return Predicted(why_not=why_not, untimed=untimed)


def predicted(spec: RunSpec, workers: Sequence[str] = ()) -> Predicted:
    """`Sources.predicted` for one run."""
    return Sources([spec]).predicted(spec, workers)


def paced(run: Run, profile: Profile, hosts: Sequence[str] = ()) -> float | None:
    """Seconds a step by `profile` for devices as fast, and drifting, as the reference work measured them during the
    run.

    None if the run or the profile has no such measurement.
    """
    spec, table = RunSpec.stored(run.spec), table_of(profile.pk, profile.done_at)
    together = max(Counter(hosts).values(), default=run.devices)
    spells = spells_beside(metrics.by_rank(run, "reference_time", run.devices), table.usual(together))
    return predict_step(spec, table, where=where(spec, hosts), spells=spells).seconds if spells else None


@read_once
def prediction_of(run: Run) -> Prediction | None:
    """What was predicted of the run."""
    return Prediction.objects.filter(run=run).first()
