"""A run of a study or comparison, as the tables and charts of its page show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboard.charts.chart import Entry
from dashboard.runs.models import Run
from dashboard.studies.overview import by_loss
from parallel_core.analysis.parity import Parity
from parallel_core.spec import RunSpec


@dataclass(frozen=True)
class Row:
    """One run, as tables and charts show it."""

    run: Run
    spec: RunSpec
    entry: Entry
    parity: Parity | None = None
    sentence: str = ""
    """Why it has no result yet, or how it ended."""
    meters: Mapping[str, Any] = field(default_factory=dict)
    """See `peaks.over_one_peak`."""
    alike: bool = True
    """Whether it trains the baseline's kind of model: another kind has no speedup over it."""

    @property
    def steps_done(self) -> int:
        return self.run.steps_done

    @property
    def held_out(self) -> float | None:
        """The lowest held-out loss of a run that has ended; None if there is none."""
        return by_loss.lowest_held_out(self.run)

    @property
    def unmeasured(self) -> bool:
        """Whether there is nothing to show in the columns of numbers."""
        return self.run.step is None and not (self.entry.result or self.parity or self.meters)

    @property
    def progress(self) -> int:
        """Steps done, in percent."""
        return min(100, round(100 * self.steps_done / self.spec.train.steps))
