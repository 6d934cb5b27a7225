"""Sentences above pages and charts, made from numbers: at most 25 words, the number as early as possible.

A function returns a whole sentence with its full stop, and says so if a difference is within noise. Labels are inserted
unescaped (whoever prints a sentence escapes it) and count as one word. A baseline is one of the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallel_core.analysis.breakdown import DIFFERENCES, Breakdown
from parallel_core.analysis.causes import LOSSES, why_fast, why_slow
from parallel_core.analysis.names import CATEGORY_NAMES, COMPONENT_NAMES
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    listed_text,
    loss_text,
    minus_text,
    ns_text,
    percent_text,
    plural_text,
    ratio_text,
)
from parallel_core.analysis.stats import MOST_OF_IDEAL, Speedup, Stats, speedup

NONE_FINISHED = "0 runs have finished."
"""Title of a chart of finished runs; a running one may have traced and metered steps, which its own page shows."""


@dataclass(frozen=True)
class Result:
    """Data of one run for the sentences; None if it was not measured."""

    label: str
    step: Stats
    """Seconds a step."""
    ideal: float | None = 1.0
    """plan.strategy.ideal_speedup; None where none is known, as in comparison with another model."""
    memory: Mapping[str, int] | None = None
    """Measured bytes by category at the peak of the worst rank."""
    breakdown: Breakdown | None = None
    """Mean over the ranks of one traced step."""
    devices: int = 1
    taken: float = 0.0
    """Share of one of its devices that other processes took in the timed steps, if large enough to disturb them."""
    diverged: bool = False
    """Whether its newest loss is not finite."""
    slowed_by: str = ""
    """What was broken in it on purpose that makes steps longer; '' for nothing."""

    @property
    def memory_total(self) -> int | None:
        """Bytes at the peak of the worst rank; None if not metered."""
        return sum(self.memory.values()) if self.memory else None


def verdict(results: Sequence[Result], baseline: Result) -> list[str]:
    """Fastest, slowest, least memory: up to three sentences on a study; one if there is nothing to compare."""
    if not results:
        return [NONE_FINISHED]
    if len(results) == 1:
        return [f"{ns_text(results[0].step.median * 1e9)} a step: {results[0].label} is the only finished run."]
    return [text for text in (fastest(results, baseline), slowest(results, baseline), least_memory(results)) if text]


def fastest(results: Sequence[Result], baseline: Result) -> str:
    """Which run is fastest, its speedup over the baseline, and the runs within noise of it."""
    best = min(results, key=lambda r: r.step.median)
    rivals = _rivals(results, best, baseline)
    close = also_close(rivals)
    lost = "; its loss is not finite any more" if best.diverged else ""
    if best is baseline:
        time = ns_text(best.step.median * 1e9)
        verb = "has the fastest median" if best.step.few or close else "is fastest"
        return f"{baseline.label}, the baseline, {verb}: {time} a step{lost}{close}."
    gain = speedup(baseline.step, best.step)
    verb = "has the fastest median" if gain.within_noise or close else "is fastest"
    times = f"{_times(gain)} {baseline.label}{_of_ideal(gain, best, baseline)}"
    if gain.within_noise:
        return f"{best.label} {verb}: {times}{_noise_of(gain, 'it', rivals)}{lost}."
    return f"{best.label} {verb}: {times}{why_fast(best, baseline)}{lost}{close}."


def slowest(results: Sequence[Result], baseline: Result) -> str:
    """Which run is slowest, its speedup over the baseline, why, and the runs within noise of it. Of equal ones the
    last, as in a list of the runs by their times."""
    worst = max(reversed(results), key=lambda r: r.step.median)
    rivals = _rivals(results, worst, baseline)
    close = also_close(rivals)
    if worst is baseline:
        verb = "has the slowest median" if worst.step.few or close else "is slowest"
        return f"{baseline.label}, the baseline, {verb}: {ns_text(worst.step.median * 1e9)} a step{close}."
    gain = speedup(baseline.step, worst.step)
    verb = "has the slowest median" if gain.within_noise or close else "is slowest"
    even = gain.within_noise and worst.devices <= baseline.devices  # on more devices, no gain is to be explained, too
    why = "" if even else why_slow(worst, baseline)
    if gain.within_noise:
        return f"{worst.label} {verb}: {ratio_text(gain.ratio)}{_noise_of(gain, baseline.label, rivals)}{why}."
    return f"{worst.label} {verb}: {ratio_text(gain.ratio)}{why}{close}."


def least_memory(results: Sequence[Result]) -> str:
    """Which runs need least memory on their worst rank; '' if none was metered."""
    known = [size for r in results if (size := r.memory_total) is not None]
    if not known:
        return ""
    least, labels = bytes_text(min(known)), lightest(results)
    among = among_metered(results)
    if len(labels) == len(known) > 1:
        return f"Memory: {least} on the worst rank of every {'metered ' if among else ''}run."
    if len(labels) == 1:
        return f"Least memory: {least} on its worst rank, {labels[0]}{among}."
    return f"Least memory: {least} on the worst rank of {listed_text(shortened(labels))}{among}."


def among_metered(results: Sequence[Result]) -> str:
    """A clause on how many of the runs were metered, as runs need not be; '' where all were."""
    known = sum(r.memory_total is not None for r in results)
    return (
        f" ({known} of {len(results)} runs {'was' if known == 1 else 'were'} metered)" if known < len(results) else ""
    )


def lightest(results: Sequence[Result]) -> list[str]:
    """The labels of the metered runs whose memory is written as the least is, which comes first."""
    known = sorted((size, r.label) for r in results if (size := r.memory_total) is not None)
    return [label for size, label in known if bytes_text(size) == bytes_text(known[0][0])]


def heaviest(results: Sequence[Result]) -> list[Result]:
    """The metered runs whose memory is written as the most is, in their order."""
    known = [r for r in results if r.memory_total is not None]
    most = bytes_text(max((r.memory_total or 0 for r in known), default=0))
    return [r for r in known if bytes_text(r.memory_total or 0) == most]


def shortened(labels: Sequence[str]) -> list[str]:
    """The labels themselves, of more than two the first and how many others there are."""
    return [labels[0], f"{len(labels) - 1} others"] if len(labels) > 2 else list(labels)


def speedup_title(results: Sequence[Result], baseline: Result) -> str:
    """Title of the speedup bars."""
    others = [r for r in results if r is not baseline]
    if not others:
        return f"{ratio_text(1)} is the baseline, {baseline.label}; nothing else has finished."
    gains = [(speedup(baseline.step, r.step), r.label) for r in others]
    faster = sum(gain.ratio > 1 and not gain.within_noise for gain, _ in gains)
    best, label = max(gains, key=lambda pair: pair[0].ratio)
    return (
        f"{faster} of {len(others)} beat {baseline.label} beyond noise; "
        f"{label} reaches {ratio_text(best.ratio)}{noise(best)}."
    )


def breakdown_title(results: Sequence[Result]) -> str:
    """Title of the stacked steps: the largest component that is not compute."""
    lost = [(r.breakdown.share(name), r.label, name) for r in results if r.breakdown for name in LOSSES]
    if not results:
        return NONE_FINISHED
    if not lost:
        return "0 steps have the spans of all ranks."
    share, label, name = max(lost)
    return f"{percent_text(share)} of a step of {label} is {COMPONENT_NAMES[name]}, the largest loss here."


def memory_title(results: Sequence[Result], limit: int | None = None) -> str:
    """Title of worst-rank memory by category; `limit`: bytes of a device."""
    metered = [r for r in results if r.memory]
    if not results:
        return NONE_FINISHED
    if not metered:
        return "0 runs have been metered."
    worst = heaviest(metered)
    most = bytes_text(worst[0].memory_total or 0)
    largest = {_largest(r.memory or {}) for r in worst}
    part = f", of which {largest.pop()}" if len(largest) == 1 else ""
    over = sum((r.memory_total or 0) > limit for r in metered) if limit else 0
    tail = f"; {over} of {len(metered)} are above the limit" if over else ""
    who = listed_text(shortened([r.label for r in worst]))
    return f"{most} at most: {who}{part}{tail}{among_metered(results)}."


def loss_title(first: float, last: float, steps: int, label: str) -> str:
    """Title of the loss curves, for the run `label`."""
    after = f"after {count_text(steps)} step{'' if steps == 1 else 's'}"
    if not math.isfinite(last):
        return f"Not finite {after}: the loss of {label} began at {loss_text(first)}."
    verb = "falls from" if last < first else "rises from" if last > first else "stays at"
    return f"{loss_text(last)} {after}: the loss of {label} {verb} {loss_text(first)}."


def gantt_title(label: str, breakdown: Breakdown) -> str:
    """Title of one traced step."""
    name = max(LOSSES, key=breakdown.share)
    return (
        f"{percent_text(breakdown.share('compute'))} of {ns_text(breakdown.total)} "
        f"is compute in {label}; {COMPONENT_NAMES[name]} takes {percent_text(breakdown.share(name))}."
    )


def pair_sentence(a: Result, b: Result) -> str:
    """Comparison of two runs: the speedup of b over a."""
    gain = speedup(a.step, b.step)
    return f"{b.label} is {_times(gain)} {a.label}{noise(gain)}."


def difference_sentence(a: Breakdown, b: Breakdown) -> str:
    """Title of the waterfall from a to b: the two bars that changed most, and a third where the rest would be larger
    than the second, less what is under 1 % of the difference."""
    saved = {word: sum(getattr(a, name) - getattr(b, name) for name in names) for word, names in DIFFERENCES}
    total = a.total - b.total
    if max(map(abs, (total, *saved.values()))) < _SMALL * max(a.total, b.total):
        return f"{ns_text(a.total)} and {ns_text(b.total)}: no part of their traced steps differs by 1 % of these."
    verb = "saved" if total >= 0 else "added"
    sign = 1 if total >= 0 else -1
    first, second, third = sorted(saved, key=lambda name: -abs(saved[name]))[:3]
    top = {first: saved[first], second: saved[second]}
    if abs(total - sum(top.values())) > abs(saved[second]):
        top[third] = saved[third]
    told = {**top, "rest": total - sum(top.values())}
    named = [
        f"{name} {_signed(sign * ns)}" for name, ns in told.items() if name == first or abs(ns) >= _SMALL * abs(total)
    ]
    return f"Of {ns_text(abs(total))} {verb} between their traced steps: {', '.join(named)}."


_SMALL = 0.01
_LOPSIDED = 0.25
"""From this share of the ratio on, the whole interval is given: for skewed times ± would overstate it."""


def _times(gain: Speedup) -> str:
    if gain.few:
        return f"{ratio_text(gain.ratio)} of"
    if gain.spread > _LOPSIDED * gain.ratio:
        return f"{ratio_text(gain.ratio)} ({gain.low:.2f} to {gain.high:.2f}) of"
    return f"{ratio_text(gain.ratio)} ± {gain.spread:.2f} of"


def _of_ideal(gain: Speedup, result: Result, baseline: Result) -> str:
    if not baseline.ideal or not result.ideal or result.ideal == baseline.ideal:
        return ""  # of equal ideals the percentage only repeats the ratio
    share = gain.ratio * baseline.ideal / result.ideal
    if share > 1 and baseline.devices > 1:
        return ""  # more than all only says that the baseline falls short of its own ideal
    doubt = ", more than devices usually give: doubt it" if share > MOST_OF_IDEAL else ""
    return f" ({percent_text(share)} of ideal{doubt})"


def _rivals(results: Sequence[Result], first: Result, baseline: Result) -> list[str]:
    """The runs that may be as fast, or as slow, as the first, without the baseline: their whiskers overlap its own."""
    others = [r for r in results if r is not first and r is not baseline]
    return [r.label for r in others if speedup(r.step, first.step).within_noise]


def _noise_of(gain: Speedup, baseline: str, rivals: Sequence[str]) -> str:
    """`noise` of a gain over the `baseline` that may be none, with the rivals of the run: one clause on both."""
    if not rivals:
        return noise(gain)
    others = rivals[0] if len(rivals) == 1 else f"{len(rivals)} others"
    return f"{noise(gain)} of {baseline} and of {others}"


def also_close(labels: Sequence[str]) -> str:
    """A clause on the runs that are within noise of the one that was named; '' without any."""
    if len(labels) == 1:
        return f"; {labels[0]} is within noise"
    return f"; {len(labels)} others are within noise" if labels else ""


def noise(gain: Speedup, of: str = "timed step") -> str:
    """A clause on whether the ratio is within noise, with the number of its values, one of which is called `of`, where
    they are too few to tell; else ''."""
    if not gain.within_noise:
        return ""
    return f", within noise ({plural_text(gain.n, of)})" if gain.few else ", within noise"


def _largest(memory: Mapping[str, int]) -> str:
    """The largest category and its share."""
    category = max(memory, key=memory.__getitem__)
    return f"{percent_text(memory[category] / max(sum(memory.values()), 1))} {CATEGORY_NAMES[category]}"


def _signed(nanoseconds: int) -> str:
    return minus_text(f"{'-' if nanoseconds < 0 else ''}{ns_text(abs(nanoseconds))}")
