"""What the rules find in the runs of a study: the first finding of each run, the most urgent first."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.runs.findings import Card, findings_of
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row

JUDGED = 40
"""The most runs that are judged, those furthest from their ideal first: each takes up to a tenth of a second."""
SHOWN = 6


@dataclass(frozen=True)
class Found:
    """The first finding of one run."""

    row: Row
    card: Card
    more: int
    """Number of further findings of the run."""


@dataclass(frozen=True)
class OfStudy:
    """The first findings of a study's runs."""

    found: list[Found]
    judged: int
    """Number of runs that had something to judge."""
    total: int
    rules: int
    """The most rules that were applied to a run."""

    @property
    def shown(self) -> list[Found]:
        """The worst finding of each rule, so that what holds for many runs is shown once."""
        first = {one.card.finding.rule: one for one in reversed(self.found)}
        return sorted(first.values(), key=self.found.index)[:SHOWN]

    @property
    def rest(self) -> list[Found]:
        """The findings that are not shown."""
        shown = self.shown
        return [one for one in self.found if one not in shown]


def of_overview(view: Overview) -> OfStudy:
    """Judges the runs; urgent findings come first, then those that cost the largest part of the run's own step."""
    chosen = sorted(view.rows, key=_distance, reverse=True)[:JUDGED]
    found, judged, rules = [], 0, 0
    of = findings_of([row.run for row in chosen])
    for row in chosen:
        own = of[row.run.pk]
        judged += bool(own.checked)
        rules = max(rules, own.checked)
        if own.cards:
            found.append(Found(row, own.cards[0], len(own.cards) - 1 + own.more))
    return OfStudy(sorted(found, key=_urgency, reverse=True), judged, len(view.rows), rules)


def _distance(row: Row) -> tuple[bool, float]:
    """Sort key: runs that are not done first, then those furthest from their ideal speedup."""
    return not row.entry.done, 1 - (row.entry.of_ideal or 0.0)


def _urgency(found: Found) -> tuple[bool, float, float]:
    """Sort key; of runs that other processes disturbed, a finding without an effect, the one that lost most to them."""
    entry, finding = found.row.entry, found.card.finding
    step = (entry.traced_median or 0.0) * 1e9
    return finding.urgent, finding.effect_ns / step if step else 0.0, entry.others or 0.0
