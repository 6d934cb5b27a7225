"""Whether there is a reason to use the slowest run of a study, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.samples import samples_after
from dashboard.studies.overview import streams
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from dashboard.studies.overview.streams import Race
from parallel_core.analysis.quantities import (
    bytes_beside,
    count_text,
    listed_text,
    loss_text,
    seconds_text,
    significant,
)
from parallel_core.analysis.stats import speedup
from parallel_core.plan.traffic import most_sent

QUESTION = "Is there a reason to use the slowest?"
LOWER = 0.01
"""Relative difference from which a lower loss is mentioned: precisions differ by less."""


def sentence(view: Overview, done: Sequence[Row]) -> str:
    """What the slowest of the runs `done`, fastest first, has that the fastest has not: a lower loss, less memory, room
    for layers, less traffic, or an earlier loss; or the first of the others that is no worse than it in any of these.
    """
    fast, slow = done[0], done[-1]
    race = streams.race(view) if any(not row.spec.parallel.flushes for row in done) else None
    reasons = _reasons(slow, fast, race)
    asked = _known(slow) if _lower(slow, fast) else _known(slow) & {"memory", "layers"}
    better = next((row for row in done[:-1] if asked <= _known(row) and not _reasons(slow, row, race)), None)
    if reasons and better is None:
        return f"Yes. Against {fast.entry.label}, {slow.entry.label} {listed_text(reasons)}."
    known = better or fast
    return f"No number compared here speaks for {slow.entry.label}: {known.entry.label} {_no_worse(slow, known)}."


def _reasons(slow: Row, fast: Row, race: Race | None) -> list[str]:
    """In what the slower run is better, as far as it is known of both."""
    found = (
        _lower(slow, fast),
        _lighter(slow, fast),
        _deeper(slow, fast),
        _quieter(slow, fast),
        _sooner(slow, fast, race),
    )
    return [text for text in found if text]


def _known(row: Row) -> set[object]:
    """What can be compared of a run: its memory, its layers, and its loss after so many samples of its task."""
    seen = None if row.run.loss is None else samples_after(row.run, row.steps_done)
    task = None if seen is None else (seen, row.spec.model.model_dump_json(), row.spec.train.corpus)
    known: dict[object, object] = {"memory": _peak(row), "layers": row.entry.largest, task: task}
    return {name for name, value in known.items() if value}


def _no_worse(slow: Row, fast: Row) -> str:
    """In what the faster run is no worse, where `_lighter`, `_deeper` and `_quieter` found nothing: only what is known
    of both was compared."""
    a, b = (row.entry.result for row in (slow, fast))
    within = a is None or b is None or speedup(a.step, b.step).within_noise
    said = ["has the faster median" if within else "is faster"]
    said += ["takes no more memory"] if all(map(_peak, (slow, fast))) else []
    said += ["holds no fewer layers"] if slow.entry.largest and fast.entry.largest else []
    return listed_text([*said, "sends no more"])


def _peak(row: Row) -> int | None:
    """Bytes at the peak of the worst rank; None if not metered."""
    return row.entry.result.memory_total if row.entry.result else None


def _lower(slow: Row, fast: Row) -> str:
    """A lower loss, if both saw as many samples of one task and the difference is more than rounding; else ''."""
    (a, one), (b, other) = ((row.run.loss, row.spec) for row in (slow, fast))
    seen = {samples_after(row.run, row.steps_done) for row in (slow, fast)}
    if a is None or None in seen or len(seen) > 1 or (one.model, one.train.corpus) != (other.model, other.train.corpus):
        return ""
    if fast.run.diverged:
        return f"ends at loss {loss_text(a)}, where that of {fast.entry.label} is not finite"
    lower = b is not None and a < b * (1 - LOWER)
    return f"ends at loss {loss_text(a)} instead of {loss_text(b)}" if lower and b is not None else ""


def _lighter(slow: Row, fast: Row) -> str:
    a, b = _peak(slow), _peak(fast)
    if not a or not b or a >= b:
        return ""
    return f"takes {bytes_beside(a, b)} instead of {bytes_beside(b, a)} on its worst rank"


def _deeper(slow: Row, fast: Row) -> str:
    a, b = slow.entry.largest, fast.entry.largest
    return f"would hold {count_text(a)} layers instead of {count_text(b)}" if a and b and a > b else ""


def _quieter(slow: Row, fast: Row) -> str:
    a, b = most_sent(slow.spec), most_sent(fast.spec)
    if a >= b:
        return ""
    return f"sends {bytes_beside(a, b)} a step from a device instead of {bytes_beside(b, a)}" if a else "sends nothing"


def _sooner(slow: Row, fast: Row, race: Race | None) -> str:
    """Reaching a loss earlier: possible for the slower run if their updates differ; else ''."""
    if race is None or (slow.spec.parallel.flushes and fast.spec.parallel.flushes):
        return ""
    a, b = (own.seconds if (own := race.reaches.get(row.run.pk)) else None for row in (slow, fast))
    if race.goal is None or a is None or b is None or a >= b:
        return ""
    return f"reaches loss {significant(race.goal, 4)} in {seconds_text(a)} instead of {seconds_text(b)}"
