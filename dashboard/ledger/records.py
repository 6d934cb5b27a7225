"""How accurate the yard's predictions were so far: each with what was measured of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.db.models import F, QuerySet

from dashboard.ledger.models import Prediction
from parallel_core.analysis.quantities import signed_percent_text

NEWEST = 500
"""How many of the newest settled predictions a record covers."""


@dataclass(frozen=True)
class Record:
    """Relative errors of settled predictions (predicted over measured, less 1), newest first."""

    errors: tuple[float, ...] = ()
    disturbed: int = 0
    """Number of settled predictions that are left out because others used the devices."""
    elsewhere: int = 0
    """Number that are left out because the run was on other hosts than predicted or profiled."""
    as_likely: tuple[bool, ...] = ()
    """Of the predictions with a likely range: whether the step lay in it."""

    @property
    def mean(self) -> float:
        return sum(map(abs, self.errors)) / len(self.errors)

    @property
    def bias(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def worst(self) -> float:
        return max(self.errors, key=abs)

    @property
    def above(self) -> int:
        return sum(error > 0 for error in self.errors)

    @property
    def left_out(self) -> str:
        """`2 disturbed left out`, `3 left out: 2 disturbed, 1 on other hosts`; '' if none is."""
        counts = ((self.disturbed, "disturbed"), (self.elsewhere, "on other hosts"))
        parts = [f"{count} {why}" for count, why in counts if count]
        if len(parts) < 2:
            return "".join(f"{part} left out" for part in parts)
        return f"{self.disturbed + self.elsewhere} left out: {', '.join(parts)}"

    @property
    def inside(self) -> int:
        return sum(self.as_likely)

    def sentence(self, what: str = "predictions") -> str:
        """`212 predictions, mean error 3.1 %, bias −0.4 %, worst −9.0 %`."""
        left = f" ({self.left_out})" if self.left_out else ""
        if not self.errors:
            return f"No {what} settled yet{left}."
        one = what.removesuffix("s") if len(self.errors) == 1 else what
        return (
            f"{len(self.errors)} {one}, mean error {self.mean * 100:.1f} %, "
            f"bias {signed_percent_text(self.bias)}, worst {signed_percent_text(self.worst)}{left}."
        )


def of_both(times: Record, memory: Record) -> tuple[str, str]:
    """The sentences on step times and on memory; a single one if neither has been settled."""
    if not times.errors and not memory.errors:
        return times.sentence(), ""
    return (
        f"Step times: {times.sentence()}" if times.errors else times.sentence("step times"),
        f"Memory: {memory.sentence()}" if memory.errors else memory.sentence("peaks of memory"),
    )


def settled() -> QuerySet[Prediction]:
    """Settled predictions with their runs, newest first; without the tables and summaries, which no list shows."""
    whole = _settled().select_related("run", "profile__worker")
    return whole.defer("profile__table", "run__summary")


def time_record() -> Record:
    """The record of step times that were simulated from a profile."""
    rows = _timed("seconds")
    likely = (row.as_likely for row in rows if not row.disturbed)
    return replace(_of_times(rows, "seconds"), as_likely=tuple(inside for inside in likely if inside is not None))


def paced_record() -> Record:
    """The record of step times predicted at the pace that devices had during each run: what is left is the model's own
    error."""
    return _of_times(_timed("paced_seconds"), "paced_seconds")


def replay_record() -> Record:
    """The record of step times predicted by a replay of another run, on any hosts that were predicted."""
    return _of_times(_timed("replayed_seconds"), "replayed_seconds")


def memory_record() -> Record:
    """The record of peaks on the worst rank: counted bytes, which nobody can disturb."""
    known = _settled().filter(memory__isnull=False, measured_memory__gt=0)
    error = F("memory") * 1.0 / F("measured_memory") - 1.0
    return Record(tuple(known.annotate(error=error).values_list("error", flat=True)[:NEWEST]))


def _settled() -> QuerySet[Prediction]:
    return Prediction.objects.filter(settled_at__isnull=False).order_by("-id")


def _timed(field: str) -> list[Prediction]:
    """The newest settled predictions with `field`, with nothing but their numbers: pages that wait for a record are
    many, and a profile's table has up to a megabyte."""
    known = _settled().filter(**{f"{field}__isnull": False}, measured_seconds__gt=0)
    why = ("disturbed", "left_out", "elsewhere")
    return list(known.only(field, "low_seconds", "high_seconds", "earlier", "measured_seconds", *why)[:NEWEST])


def _of_times(rows: Sequence[Prediction], field: str) -> Record:
    """A replay needs no profile, so where only that is missing its prediction counts."""
    noisy = [row for row in rows if row.noisy]
    good = [row for row in rows if not (row.noisy or (row.elsewhere if field == "replayed_seconds" else row.disturbed))]
    pairs = ((getattr(row, field), row.measured_seconds) for row in good)
    errors = tuple(said / came - 1 for said, came in pairs if said and came)
    return Record(errors, len(noisy), len(rows) - len(good) - len(noisy))
