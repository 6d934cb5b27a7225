"""The range beside a predicted step, from what the same host's earlier predictions were off by."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from dashboard.fleet.models import Worker
from dashboard.ledger.models import Prediction, Profile, ProfileState
from parallel_core.analysis.quantities import plural_text
from parallel_core.plan.alike import of_step
from parallel_core.simulate.likely import RunKind, by_scores, elsewhere_text, kind_of, range_words, scores
from parallel_core.spec import RunSpec

READ = 200
"""The newest settled runs of a host whose errors count: it changes, and so does this program. With 40 they were often
of the same minutes, in which a host has one pace (docs/numbers.md)."""


class Range(NamedTuple):
    """Eight of ten runs take between `low` and `high` seconds, judging by so many `earlier` ones of a `kind` (None: of
    any) on this host, or by errors measured elsewhere (0)."""

    low: float
    high: float
    earlier: int = 0
    kind: RunKind | None = None

    def text(self, host: str) -> str:
        """`eight of ten such runs take 45 ms to 62 ms, by 14 earlier ones on alpha that had one device`."""
        if not self.earlier:
            return elsewhere_text(self.low, self.high)
        sort = f" {self.kind}" if self.kind else ""
        return f"{range_words(self.low, self.high)}, by {plural_text(self.earlier, 'earlier one')} on {host}{sort}"


class _Step(NamedTuple):
    """A settled step: `ratio` = measured over predicted; `apart`: over several hosts."""

    kind: RunKind
    ratio: float
    device: str
    apart: bool


class Earlier:
    """The settled steps of hosts, each host's read once."""

    def __init__(self) -> None:
        self._known: dict[int, list[_Step]] = {}

    def range(self, spec: RunSpec, profile: Profile, seconds: float, hosts: int) -> Range | None:
        """The range of a step of `spec` over so many hosts, predicted by `profile`. None if too few earlier ones are
        known."""
        if profile.worker_id not in self._known:
            self._known[profile.worker_id] = _read(profile.worker)
        alike = (spec.train.device, hosts > 1)
        found = [step for step in self._known[profile.worker_id] if (step.device, step.apart) == alike]
        kind = _kind(spec, profile.worker, hosts)
        for steps, of in (([step for step in found if step.kind is kind], kind), (found, None)):
            errors = [(step.kind, step.ratio) for step in steps]
            if (factors := by_scores(kind, scores(errors))) is not None:
                return Range(seconds * factors[0], seconds * factors[1], len(errors), of)
        return None


def _kind(spec: RunSpec, worker: Worker, hosts: int) -> RunKind:
    own = sum(device["kind"] == spec.train.device for device in worker.devices)
    return kind_of(spec.parallel, max(1, own) * hosts)


def _read(worker: Worker) -> list[_Step]:
    """The newest settled predictions by profiles of the host, one of each step, newest first.

    A table that was recalibrated, or taken back, is not used any more: what it was off by says nothing of the next.
    """
    again = Profile.objects.filter(base=OuterRef("profile"), state=ProfileState.DONE)
    good = Prediction.objects.filter(
        ~Exists(again), profile__worker=worker, profile__state=ProfileState.DONE, disturbed=False, seconds__gt=0
    ).filter(settled_at__isnull=False, measured_seconds__gt=0)
    names = ("profile", "run__spec", "hosts", "seconds", "measured_seconds")
    found: dict[tuple[Any, ...], _Step] = {}
    for profile, stored, hosts, seconds, measured in good.order_by("-id").values_list(*names)[:READ]:
        spec, over = RunSpec.stored(stored), len(set(hosts)) or 1
        step = _Step(_kind(spec, worker, over), measured / seconds, spec.train.device, over > 1)
        found.setdefault((profile, of_step(spec).model_dump_json()), step)
    return list(found.values())
