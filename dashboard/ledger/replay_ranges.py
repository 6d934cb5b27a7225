"""How far off a What if may be that a run can have: by what earlier ones on the same hosts were off by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.ledger.models import Prediction
from dashboard.ledger.ranges import READ
from dashboard.runs.models import Run
from dashboard.runs.places import NOWHERE, places_of
from parallel_core.analysis.quantities import listed_text, plural_text
from parallel_core.plan.alike import of_step
from parallel_core.simulate.likely import between, range_words
from parallel_core.spec import RunSpec


class Off(NamedTuple):
    """Eight of ten runs take between `low` and `high` times what a replay predicts, by `earlier` ones on `hosts`; `of`
    the same kind, in words, or of any ('')."""

    low: float
    high: float
    earlier: int
    of: str
    hosts: Sequence[str]

    def text(self, seconds: float) -> str:
        """`eight of ten such runs take 45 ms to 62 ms, by 14 earlier ones on alpha with other micro-batches`."""
        words = range_words(self.low * seconds, self.high * seconds)
        return f"{words}, by {plural_text(self.earlier, 'earlier one')} on {listed_text(self.hosts)}{self.of}"


def off_by(run: Run, recounted: bool) -> Off | None:
    """What replays of runs on the hosts of `run` were off by, and where enough are known those of its kind:
    `recounted`, with another number of micro-batches, or not. None if there are too few of either."""
    hosts = places_of([run]).get(run.pk, NOWHERE).hosts
    found = _settled(hosts, run.spec) if hosts else []
    alike = [ratio for other, ratio in found if other is recounted]
    words = " with other micro-batches" if recounted else " with as many micro-batches"
    for ratios, of in ((alike, words), ([ratio for _, ratio in found], "")):
        if (bounds := between(ratios)) is not None:
            return Off(*bounds, len(ratios), of, hosts)
    return None


def _settled(hosts: Sequence[str], spec: dict[str, Any]) -> list[tuple[bool, float]]:
    """(whether micro-batches were recounted, measured over replayed) of the newest settled predictions by replay of
    runs on these hosts, each step of a replayed run once."""
    known = Prediction.objects.filter(replayed__isnull=False, replayed_seconds__gt=0, elsewhere=False)
    good = known.filter(settled_at__isnull=False, measured_seconds__gt=0).exclude(disturbed=True, left_out="")
    names = ("run", "run__spec", "replayed", "replayed__spec", "replayed_seconds", "measured_seconds")
    rows = list(good.order_by("-id").values_list(*names)[:READ])
    places = places_of(Run.objects.filter(pk__in=[row[0] for row in rows]).only("pk"))
    found: dict[tuple[int, str], tuple[bool, float]] = {}
    for pk, stored, source, source_spec, replayed, measured in rows:
        if places.get(pk, NOWHERE).hosts != tuple(hosts):
            continue
        try:
            after, before = RunSpec.stored(stored), RunSpec.stored(source_spec)
        except ValueError:  # stored by an older version
            continue
        if after.train.device != spec["train"]["device"]:
            continue
        recounted = after.parallel.micro_batches != before.parallel.micro_batches
        found.setdefault((source, of_step(after).model_dump_json()), (recounted, measured / replayed))
    return list(found.values())
