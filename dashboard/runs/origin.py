"""What a run changes of the run whose spec it was made from, and what a replay of another run predicted for it."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.ledger.selectors import prediction_of
from dashboard.runs.differences import differences
from dashboard.runs.form.form_words import short_label
from dashboard.runs.models import Run
from dashboard.runs.page.tiles import off_text
from parallel_core.analysis.quantities import seconds_text
from parallel_core.spec import RunSpec

SHOWN = 4
"""The most changes that the head of a page names; Compare has them all."""
LONGEST = 40
"""The most characters of a value there: lists, and schedules of one's own, can be long."""


@dataclass(frozen=True)
class Change:
    """A field with its value before and after."""

    field: str
    before: str
    after: str


@dataclass(frozen=True)
class Origin:
    """The run whose spec another one changes, the first of the changes, and how many more there are."""

    run: Run
    changes: list[Change]
    more: int


def origin_of(run: Run) -> Origin | None:
    """The origin of a run that trains; None if it was made from no other, or that has been deleted since."""
    if run.task or run.based_on_id is None:
        return None
    source = Run.objects.only("name", "spec").filter(pk=run.based_on_id).first()
    if source is None:
        return None
    found, _ = differences([RunSpec.stored(source.spec), RunSpec.stored(run.spec)])
    changes = [Change(short_label(one.field) or one.words, *map(_clipped, one.values)) for one in found[:SHOWN]]
    return Origin(source, changes, len(found) - len(changes))


@dataclass(frozen=True)
class Foretold:
    """What the replay of a run (with its name alone) predicted for another run's step, in words."""

    run: Run
    words: str


def foretold(run: Run) -> Foretold | None:
    """The What if of another run that predicted this one, and once it has ended how far off that was; None if there is
    none. Nothing is said of the error where others used the devices, or these were others than those replayed."""
    said = prediction_of(run)
    if said is None or not said.replayed_seconds or said.replayed_seconds <= 0:
        return None
    source = Run.objects.only("name").filter(foresaw=said).first()
    if source is None:
        return None
    words = f"{seconds_text(said.replayed_seconds)} a step"
    if said.measured_seconds and not (said.noisy or said.elsewhere):
        words += f", {off_text(said.replayed_seconds / said.measured_seconds - 1)}"
    return Foretold(source, words)


def _clipped(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
