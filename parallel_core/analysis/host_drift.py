"""Pace of the devices of runs, from the reference work next to their steps (observe.reference).

The reference work takes longer for two reasons. Other busy devices take something from a device (a core's other half,
the clock, the memory bus): contention (`company`), which a run measures itself, since it does the work with all its
devices at once and with one of them alone within milliseconds. The rest is the host's own pace, which differs between
runs for reasons outside of them, and so may be factored out of their comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from parallel_core.analysis.quantities import percent_text, ratio_text

POWER = 0.75
"""A step changes with this power of the reference work's seconds: between 0.82, measured for passes with the work
directly next to them, and 0.6, at which speedups of 40 runs differed least, hardly more at 0.82 (docs/engine.md)."""
UNEVEN = 0.10
"""Smallest drift between runs that is reported: the reference work itself is no more accurate."""
COMPANY = 1.25
"""Smallest contention factor that is reported. Two hardware threads of one core, or cores short of memory bandwidth,
slow each other by more. Single runs on separate cores measured 0.9 to 1.1, one in thirty 1.3."""
LEAST = 3
"""Fewest runs with the same number of ranks that must have measured contention: with fewer, chance would pass for the
host's pace."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One run on `ranks` devices: `seconds` of the reference work with all of them busy, mean over the ranks;
    `company`: contention factor, i.e. these seconds over those of one device alone, None if not measured."""

    ranks: int
    seconds: float
    company: float | None = None


def contention_by_ranks(paces: Iterable[Pace]) -> dict[int, float]:
    """ranks -> median contention factor over runs of that size; sizes with fewer than LEAST runs are omitted; 1 rank ->
    1.0."""
    known: dict[int, list[float]] = {}
    for pace in paces:
        if pace.company is not None:
            known.setdefault(pace.ranks, []).append(pace.company)
    return {1: 1.0} | {ranks: median(found) for ranks, found in sorted(known.items()) if len(found) >= LEAST}


def drifts(base: Pace, paces: Sequence[Pace]) -> list[float | None]:
    """Slowdown of a single device, without contention, in each of these runs against `base` (which may be one of them);
    None if the contention for its number of ranks is unknown, so that it cannot be separated from the host's pace."""
    company = contention_by_ranks(paces)

    def drift(pace: Pace) -> float | None:
        if pace.ranks == base.ranks:
            return pace.seconds / base.seconds
        if pace.ranks not in company or base.ranks not in company:
            return None
        return pace.seconds / company[pace.ranks] / (base.seconds / company[base.ranks])

    return [drift(pace) for pace in paces]


def spread(paces: Sequence[Pace]) -> float | None:
    """Relative slowdown of a single device in the slowest run against the fastest one that it can be compared with;
    None if no two can be compared."""
    return max(
        (max(known) / min(known) - 1 for base in paces if len(known := _known(drifts(base, paces))) > 1), default=None
    )


def at_pace(ratio: float, drift: float) -> float:
    """The speedup `ratio` if the host had been as fast in this run as in the baseline's; `drift`: slowdown of the
    reference work against the baseline's run."""
    return ratio * drift**POWER


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def drift_warning(longer: float | None, at_one: tuple[str, float, str] | None = None, *, hosts: bool = False) -> str:
    """A warning if the host's own pace differed between runs; '' if not. `longer`: their `spread`; `at_one`: (fastest
    run at the baseline's pace, its speedup there, the baseline), if known; `hosts`: they were on several hosts."""
    if longer is None or longer <= UNEVEN:
        return ""
    whose = "The devices' pace" if hosts else "The host's own pace"
    differed = f"{whose} differed by up to {percent_text(longer)} between runs"
    if at_one is None:
        return f"{differed}: smaller gains between them are uncertain."
    label, ratio, baseline = at_one
    if label == baseline:
        return f"{differed}: at one pace {baseline} would be fastest."
    return f"{differed}: at {baseline}'s pace {label} would be fastest, about {ratio_text(ratio)}."


def contention_text(ranks: int, longer: float) -> str:
    """The contention factor `longer` of `ranks` devices (`contention_by_ranks`) as a sentence."""
    together = "both" if ranks == 2 else f"all {ranks}"
    return f"With {together} devices at work each took {ratio_text(longer)} as long as alone."


def contention_warning(found: Mapping[int, float]) -> str:
    """A warning if contention on the most devices measured is large, with the remaining best speedup; '' if not."""
    ranks, longer = max(found.items(), default=(1, 1.0))
    if longer < COMPANY:
        return ""
    said = contention_text(ranks, longer).removesuffix(".")
    return f"{said}: splits over them get to about {ratio_text(ranks / longer)} at most."
