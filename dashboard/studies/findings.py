"""What the rules find in the runs of a study: of each run the first finding, the worst run first."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.runs.findings import Card, findings
from dashboard.studies.selectors import Overview, Row

JUDGED = 40
"""Runs that are judged, the furthest from their ideal first: each takes up to a tenth of a second."""
SHOWN = 6


@dataclass(frozen=True)
class Found:
    """The first finding of one run."""

    row: Row
    card: Card
    more: int
    """Further findings of the run."""


@dataclass(frozen=True)
class OfStudy:
    found: list[Found]
    judged: int
    """Runs that had something to judge."""
    total: int
    rules: int
    """Rules that were asked of each, at most."""

    @property
    def shown(self) -> list[Found]:
        """The worst of each rule: the same said of many runs is said once."""
        first = {one.card.finding.rule: one for one in reversed(self.found)}
        return sorted(first.values(), key=self.found.index)[:SHOWN]

    @property
    def rest(self) -> list[Found]:
        shown = self.shown
        return [one for one in self.found if one not in shown]


def of_overview(view: Overview) -> OfStudy:
    """Urgent findings first, then by the part of the run's own step that they cost."""
    chosen = sorted(view.rows, key=_distance, reverse=True)[:JUDGED]
    found, judged, rules = [], 0, 0
    for row in chosen:
        own = findings(row.run)
        judged += bool(own.checked)
        rules = max(rules, own.checked)
        if own.cards:
            found.append(Found(row, own.cards[0], len(own.cards) - 1 + own.more))
    return OfStudy(sorted(found, key=_urgency, reverse=True), judged, len(view.rows), rules)


def _distance(row: Row) -> tuple[bool, float]:
    """Failed runs first, then those furthest from their ideal speedup."""
    return not row.entry.done, 1 - (row.entry.of_ideal or 0.0)


def _urgency(found: Found) -> tuple[bool, float]:
    step = (found.row.entry.traced_median or 0.0) * 1e9
    return found.card.finding.urgent, found.card.finding.effect_ns / step if step else 0.0
