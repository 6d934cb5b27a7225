"""What the rules of `parallel_core.analysis.diagnosis` find in a run.

They are cached: of a run that has ended until more of it arrives or a checkpoint of it goes, of one that goes on for
some seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

import numpy as np
from django.core.cache import cache
from django.db.models import Count, Sum

from dashboard.once import once
from dashboard.one_look import read_once
from dashboard.runs import selectors
from dashboard.runs.curves import NONE, curves
from dashboard.runs.memory_limits import memory_limit
from dashboard.runs.models import ENDED, Checkpoint, Cursor, DeadLetter, Run
from dashboard.runs.places import numbers_of
from dashboard.runs.tracing.traced import newest_traced_steps
from dashboard.runs.waiting.spreading import hosts_of
from parallel_core.analysis.diagnosis import RULES, Case, Finding, checked, diagnose, unjudged
from parallel_core.analysis.diagnosis.case import Step
from parallel_core.analysis.diagnosis.place import Place, place
from parallel_core.analysis.diagnosis.run_case import SERIES, case_from
from parallel_core.analysis.quantities import bytes_text, figure_text, ns_text
from parallel_core.observe.observed_steps import first_timed
from parallel_core.spec import RunSpec

QUICK_SPANS = 20_000
"""With no more spans in a step, judging takes less than about a tenth of a second."""
SHOWN = 3
KEPT_S = 3600
FRESH_S = 20
"""How long findings of a run that goes on are shown; with hundreds of ranks, judging it takes seconds."""

_Judged = tuple[list[Finding], tuple[int, str], list[Place | None]]
"""The findings, (number of rules applied, why not all were), and the place of each finding."""


@dataclass(frozen=True)
class Card:
    """A finding as a page shows it; `address` is the part of the run's page that it is about."""

    finding: Finding
    effect: str
    address: str
    place: str = ""
    """The place in the newest traced step, in words; '' if the finding is not about a place in it."""
    place_address: str = ""


@dataclass(frozen=True)
class Findings:
    """The findings to show, and how many rules were applied."""

    cards: list[Card]
    more: int
    """Number of findings beyond those shown."""
    checked: int
    """Number of rules applied; 0 where there is nothing to judge yet."""
    why: str = ""
    """Why not all rules were applied."""
    rules: int = len(RULES)
    later: bool = False
    """Judging takes seconds and has not been done: ask again with `wait`."""


def findings(run: Run, wait: bool = True) -> Findings:
    """Judges what has arrived so far; without `wait`, only if that is quick."""
    newest = selectors.newest_traced_step(run)
    if newest is None and run.step is None:  # not `loss`, which is None where it is not finite
        return Findings([], 0, 0)
    return _kept(run, newest, _key(run, newest), wait)


def findings_of(runs: Sequence[Run]) -> dict[int, Findings]:
    """The findings of several runs, by run: those that are kept are found with as many queries as those of one."""
    newest = newest_traced_steps(runs)
    judged = [run for run in runs if newest[run.pk] is not None or run.step is not None]
    keys = _keys(judged, newest)
    kept = {run.pk: _kept(run, newest[run.pk], keys[run.pk]) for run in judged}
    return {run.pk: kept.get(run.pk, Findings([], 0, 0)) for run in runs}


def _kept(run: Run, newest: int | None, key: str, wait: bool = True) -> Findings:
    if not wait and newest is not None and key not in cache and selectors.span_counts(run, newest)[0] > QUICK_SPANS:
        return Findings([], 0, 0, later=True)
    kept = once(key, lambda: _judged(run, newest), KEPT_S if run.state in ENDED else FRESH_S)
    found, (count, why), places = kept
    cards = [_card(newest, one, seen) for one, seen in zip(found[:SHOWN], places, strict=False)]
    return Findings(cards, max(0, len(found) - SHOWN), count, why)


def change_of(run: Run, rule: str) -> str:
    """What the finding of the rule asks to change; '' without one, and while judging takes long and is not done."""
    found = (card.finding for card in findings(run, wait=False).cards if card.finding.rule == rule)
    return next((one.change for one in found), "")


@read_once
def _key(run: Run, newest: int | None) -> str:
    return _keys([run], {run.pk: newest})[run.pk]


def _keys(runs: Sequence[Run], newest: Mapping[int, int | None]) -> dict[int, str]:
    """A cache key for each run, with its newest traced step. Of one that goes on, without its step: it is judged anew
    only after FRESH_S, and all browsers share that. Of one that has ended, with all that may still arrive of it, as
    from another host, and its checkpoints that are left."""
    told = _arrived([run for run in runs if run.state in ENDED])
    found = {}
    for run in runs:
        more = (run.step, run.summary, *told[run.pk]) if run.pk in told else (run.loss is None,)
        about = (run.queued_at, run.state, newest[run.pk], *more)
        found[run.pk] = f"findings-why:{run.pk}:{hashlib.sha256(repr(about).encode()).hexdigest()}"
    return found


def _arrived(runs: Sequence[Run]) -> dict[int, tuple[object, ...]]:
    """By run, how much of it is there: checkpoints, bytes of its files, and records that were set aside, which are
    fewer once some are stored again."""
    if not runs:
        return {}
    of = {"attempt__run__in": runs}
    left = Checkpoint.objects.filter(run__in=runs).order_by().values_list("run").annotate(Count("pk"), Sum("step"))
    files = Cursor.objects.filter(**of).order_by().values_list("attempt__run").annotate(Count("pk"), Sum("offset"))
    aside = DeadLetter.objects.filter(**of).order_by().values_list("attempt__run").annotate(Count("pk"))
    each = [{pk: counts for pk, *counts in rows} for rows in (left, files, aside)]
    return {run.pk: tuple(rows.get(run.pk) for rows in each) for run in runs}


def _judged(run: Run, newest: int | None) -> _Judged:
    case = case_of(run)
    found = diagnose(case)
    spans = selectors.spans(run, newest) if found and newest is not None else {}
    return found, (checked(case), unjudged(case)), [place(one.rule, one.rank, spans) for one in found]


def _card(newest: int | None, finding: Finding, seen: Place | None) -> Card:
    effect = ""
    if finding.effect_ns:
        effect = f"up to {ns_text(finding.effect_ns)} a step"
    elif finding.effect_bytes:
        effect = bytes_text(finding.effect_bytes)
    step = {"step": newest} if finding.tab in STEPPED else {}
    address = f"?{urlencode({'tab': finding.tab, **step})}#details"
    if seen is None or newest is None:
        return Card(finding, effect, address)
    return Card(finding, effect, address, place_text(seen), place_address(newest, seen))


def place_text(seen: Place) -> str:
    return f"Rank {seen.rank}, {figure_text(seen.begin)} to {figure_text(seen.end)} ms"


def place_address(step: int, seen: Place) -> str:
    """The address of the step's timeline, zoomed to the place, with its span highlighted."""
    lit = f"{seen.rank}:{seen.start}:{seen.stop}"
    return f"?{urlencode({'step': step, 'from': seen.begin, 'to': seen.end, 'lit': lit}, safe=':')}#timeline-title"


STEPPED = ("timeline", "accounts", "whatif")
"""Tabs that show one traced step."""


def case_of(run: Run, earlier: Run | None = None) -> Case:
    """The run as rules see it, compared with an `earlier` one if it is given."""
    spec, attempt = RunSpec.stored(run.spec), selectors.attempt_of(run)
    return case_from(
        spec,
        _StoredRecords(run, spec),
        limit=memory_limit(run, attempt),
        others=(run.summary or {}).get("cpu_others"),
        hosts=hosts_of(attempt),
        timed_ns=round(1e9 * ((run.summary or {}).get("timed") or {}).get("median", 0.0)),
        dropped=selectors.any_dropped(run),
        earlier=case_of(earlier) if earlier else None,
    )


@dataclass(frozen=True)
class _StoredRecords:
    """The records of a run in the database."""

    run: Run
    spec: RunSpec

    @cached_property
    def _curves(self) -> Mapping[tuple[str, int], np.ndarray]:
        return curves(self.run, SERIES, range(self.spec.parallel.world))

    def curve(self, name: str, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
        found = self._curves.get((name, rank), NONE)
        return found["step"], found["value"]

    def peaks(self) -> Mapping[int, int]:
        return {rank: record.peak_total for rank, record in selectors.memory(self.run).items()}

    def devices(self) -> Mapping[int, int | None]:
        return numbers_of(self.run)

    def first_timed(self) -> int:
        return first_timed(self.spec, selectors.traced_from(self.run))

    def checkpoints(self) -> frozenset[int]:
        return frozenset(self.run.checkpoints.values_list("step", flat=True))

    def rate_before(self) -> float | None:
        source, step = self.run.resume_run, (self.run.resume_step or 0) - 1
        if source is None or step < 0:
            return None
        found = selectors.first_after(source, "lr", 0, step - 1, 1)
        return float(found.value[0]) if found.step.tolist() == [step] else None

    def traced_steps(self) -> Sequence[int]:
        return selectors.traced_steps(self.run)

    def spans(self, step: int) -> tuple[Step, int]:
        return selectors.spans_and_total(self.run, step)
