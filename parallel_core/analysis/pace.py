"""How fast the devices of runs were by themselves, told by the reference work beside their steps (observe.reference).

It takes longer for two reasons. Others at work beside a device take something from it (a core's other half, the clock,
the memory bus): its company, which a run measures itself, since it does the work with all its devices at once and with
one of them alone within milliseconds. What is left is the host's own pace, which differs between runs for no reason of
theirs, and so may be taken out of what is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

POWER = 0.75
"""A step changes with the pace by this power of the work's seconds: between 0.82, which passes did with the work right
beside them, and the 0.6 to 0.8 at which speedups of 28 runs differed least (docs/engine.md)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one run on `ranks` devices: `seconds` of the reference work with all at it, the mean of the ranks; `company` =
    how many times longer that is than with one of them alone, None where it was not measured."""

    ranks: int
    seconds: float
    company: float | None = None


def companies(paces: Iterable[Pace]) -> dict[int, float]:
    """By the number of ranks: the median of what runs measured, each of which did so a few times only; of one 1."""
    known: dict[int, list[float]] = {1: [1.0]}
    for pace in paces:
        if pace.company is not None:
            known.setdefault(pace.ranks, []).append(pace.company)
    return {ranks: median(found) for ranks, found in sorted(known.items())}


def drifts(base: Pace, paces: Sequence[Pace]) -> list[float | None]:
    """How many times longer than in `base` a device by itself took in each of these runs; None where company of as many
    ranks was measured in none of them, so that it cannot be told from the host's pace."""
    company = companies([base, *paces])

    def drift(pace: Pace) -> float | None:
        if pace.ranks == base.ranks:
            return pace.seconds / base.seconds
        if pace.ranks not in company or base.ranks not in company:
            return None
        return pace.seconds / company[pace.ranks] / (base.seconds / company[base.ranks])

    return [drift(pace) for pace in paces]


def spread(paces: Sequence[Pace]) -> float | None:
    """By how much longer a device by itself took in the slowest run than in the fastest one that can be held against
    it; None where no two can."""
    return max(
        (max(known) / min(known) - 1 for base in paces if len(known := _known(drifts(base, paces))) > 1), default=None
    )


def at_pace(ratio: float, drift: float) -> float:
    """The speedup `ratio` had the host been as fast in this run as in the baseline's, where devices took `drift` times
    as long for the reference work."""
    return ratio * drift**POWER


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
