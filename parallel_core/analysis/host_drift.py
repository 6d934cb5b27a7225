"""How fast the devices of runs were by themselves, told by the reference work beside their steps (observe.reference).

It takes longer for two reasons. Others at work beside a device take something from it (a core's other half, the clock,
the memory bus): its company, which a run measures itself, since it does the work with all its devices at once and with
one of them alone within milliseconds. What is left is the host's own pace, which differs between runs for no reason of
theirs, and so may be taken out of what is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from parallel_core.analysis.quantities import percent_text, ratio_text

POWER = 0.75
"""A step changes with the pace by this power of the work's seconds: between 0.82, which passes did with the work right
beside them, and the 0.6 at which speedups of 40 runs differed least, hardly more at 0.82 (docs/engine.md)."""
UNEVEN = 0.10
"""A host that drifts less between runs than this is not warned of: the reference work itself says no more exactly."""
COMPANY = 1.25
"""Devices that take so many times longer beside others at work are held up by those: their cores are halves of one, or
they wait for memory. Single runs of whole cores measured 0.9 to 1.1, one in thirty 1.3."""
LEAST = 3
"""Runs of as many ranks that have to have measured their company: by fewer, chance would pass for the host's pace."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one run on `ranks` devices: `seconds` of the reference work with all at it, the mean of the ranks; `company` =
    how many times longer that is than with one of them alone, None where it was not measured."""

    ranks: int
    seconds: float
    company: float | None = None


def contention_by_ranks(paces: Iterable[Pace]) -> dict[int, float]:
    """By the number of ranks: the median of what LEAST runs or more measured, each a few times only; of one rank 1."""
    known: dict[int, list[float]] = {}
    for pace in paces:
        if pace.company is not None:
            known.setdefault(pace.ranks, []).append(pace.company)
    return {1: 1.0} | {ranks: median(found) for ranks, found in sorted(known.items()) if len(found) >= LEAST}


def drifts(base: Pace, paces: Sequence[Pace]) -> list[float | None]:
    """How many times longer than in `base`, which may be one of them, a device by itself took in each of these runs;
    None where the company of as many ranks is not known, so that it cannot be told from the host's pace."""
    company = contention_by_ranks(paces)

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


def drift_warning(longer: float | None, at_one: tuple[str, float, str] | None = None) -> str:
    """A warning where the host's own pace differed between runs: `longer` is their `spread`; empty where it did not.
    `at_one` = (fastest run at the baseline's pace, its speedup there, the baseline), where that is known."""
    if longer is None or longer <= UNEVEN:
        return ""
    differed = f"The host's own pace differed by up to {percent_text(longer)} between runs"
    if at_one is None:
        return f"{differed}: smaller gains between them are uncertain."
    label, ratio, baseline = at_one
    if label == baseline:
        return f"{differed}: at one pace {baseline} would be fastest."
    return f"{differed}: at {baseline}'s pace {label} would be fastest, about {ratio_text(ratio)}."


def contention_text(ranks: int, longer: float) -> str:
    """What devices take from each other (`contention_by_ranks`)."""
    return f"With all {ranks} devices at work each took {ratio_text(longer)} as long as alone."


def contention_warning(found: Mapping[int, float]) -> str:
    """The same where it is much, with the speedup that is left; of the most devices that were measured."""
    ranks, longer = max(found.items(), default=(1, 1.0))
    if longer < COMPANY:
        return ""
    said = contention_text(ranks, longer).removesuffix(".")
    return f"{said}: splits over them get to about {ratio_text(ranks / longer)} at most."
