"""The range beside a predicted step: where eight of ten runs fall that are predicted in the same way.

A prediction is off for reasons that it cannot know: the host's pace changes between the profile and the run, a profile
is one sample of it, and the simulator leaves things out, more of some kinds of runs than of others. What a host's own
earlier predictions were off by counts all of them. Before there are enough of these, the range is as wide as errors
measured elsewhere (docs/numbers.md), and as the devices drifted during the profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from parallel_core.analysis.quantities import range_text
from parallel_core.parallel_spec import ParallelSpec

SHARE = 0.8
"""Of the runs, how many a range is to hold."""
ENOUGH = 9
"""Fewest errors that bound such a range: beyond the smallest or the largest of n is the next in 2 of n + 1 cases."""


REPLAYED: Mapping[bool, tuple[float, float]] = {False: (0.03, 0.22), True: (0.07, 0.33)}
"""What replays of a step on CPUs were off by, in the mean and at worst, where the same ranks trained both in turns: 217
of another schedule, and (True) 266 of another number of micro-batches (docs/numbers.md, "What if")."""


class RunKind(StrEnum):
    """Kinds of runs whose predictions are off by different amounts. Replicas, tensor groups and pipelines are not."""

    ALONE = "that had one device"
    APART = "that had a device for each rank"
    SHARED = "whose ranks shared devices"


class Error(NamedTuple):
    """log(measured / predicted) of a kind of runs: its `middle`, and how far eight of ten are `beside` it at most,
    apart from what the devices' drift makes of them."""

    middle: float
    beside: float

    def score(self, ratio: float) -> float:
        """`ratio` = measured over predicted, in units in which eight of ten are between about -1 and 1."""
        return (math.log(ratio) - self.middle) / self._whole

    def ratio(self, score: float) -> float:
        """The ratio that has this score."""
        return math.exp(self.middle + score * self._whole)

    @property
    def _whole(self) -> float:
        return math.hypot(self.beside, math.log(USUAL_DRIFT[1]))


USUAL_DRIFT = (0.92, 1.09)
"""`device_drift.drift` of the profiles from which MEASURED was found, for tables that do not know theirs."""
MEASURED: Mapping[RunKind, Error] = {
    RunKind.ALONE: Error(-0.05, 0.145),
    RunKind.APART: Error(0.0, 0.21),
    RunKind.SHARED: Error(0.05, 0.205),
}
"""What forecasts of single runs on CPUs were off by, 914 of twelve models in three periods (docs/numbers.md, "Ranges").
By how much the host as a whole was faster in a period is in `beside`: another host may as well be slower."""


def kind_of(split: ParallelSpec, devices: int) -> RunKind:
    """The kind of a run on a host with so many devices."""
    if split.world == 1:
        return RunKind.ALONE
    return RunKind.SHARED if split.world > devices else RunKind.APART


def by_default(kind: RunKind, drift: tuple[float, float] | None) -> tuple[float, float]:
    """Factors on a predicted step that bound the range by what was measured elsewhere; `drift`: those of the drift of
    its devices in the profile (`device_drift.drift`), if it is known. The two are independent."""
    middle, beside = MEASURED[kind]
    low, high = (math.log(factor) for factor in drift or USUAL_DRIFT)
    return math.exp(middle - math.hypot(beside, low)), math.exp(middle + math.hypot(beside, high))


def by_scores(kind: RunKind, scores: Sequence[float]) -> tuple[float, float] | None:
    """The same by the `scores` of earlier runs on the host; None if there are fewer than ENOUGH."""
    found = between(scores)
    return None if found is None else (MEASURED[kind].ratio(found[0]), MEASURED[kind].ratio(found[1]))


def between(earlier: Sequence[float]) -> tuple[float, float] | None:
    """Bounds of eight of ten further values, by the `earlier` ones; None if there are fewer than ENOUGH.

    Of n + 1 runs in any order the last is as likely in each of the n + 1 gaps between the others (conformal
    prediction, Vovk et al. 2005).
    """
    count, apart = len(earlier), (1 - SHARE) / 2
    if count < ENOUGH:
        return None
    places = [share * (count + 1) - 1 for share in (apart, 1 - apart)]
    low, high = np.interp(places, range(count), sorted(earlier))
    return float(low), float(high)


def range_words(low: float, high: float) -> str:
    """`eight of ten such runs take 45 ms to 62 ms`."""
    return f"eight of ten such runs take {range_text(low, high)}"


def elsewhere_text(low: float, high: float) -> str:
    """A range in seconds by the errors measured elsewhere, in words."""
    return f"{range_words(low, high)}, by what was measured on other hosts"


def scores(errors: Iterable[tuple[RunKind, float]]) -> list[float]:
    """The scores of runs of these kinds that took so many times what was predicted."""
    return [MEASURED[kind].score(ratio) for kind, ratio in errors]
