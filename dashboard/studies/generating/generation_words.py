"""The first sentences of the page of a study of text generation: which split is fastest, why, and whether all generate
the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dashboard.runs.generation import generated_text, text_times
from dashboard.runs.generation.generating import ONE
from dashboard.runs.models import State
from dashboard.studies.generating.generation import Generations, Row
from dashboard.studies.overview import excluded
from dashboard.studies.overview.excluded import NAMED
from parallel_core.analysis import cautions
from parallel_core.analysis import sentences as common
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.generated import first_difference
from parallel_core.analysis.quantities import (
    bytes_text,
    listed_text,
    percent_text,
    plural_text,
    rate_text,
    ratio_text,
)


def differences(view: Generations) -> dict[int, tuple[int, int]]:
    """Run -> (text, token), both from 1, of the first token that is not the reference's; only runs with another text.

    Reads what their ranks have stored.
    """
    base = generated_text.whole(view.reference.run) if view.reference and view.unlike else None
    found = {}
    for row in view.unlike:
        made = generated_text.whole(row.run)
        first = first_difference(base["tokens"], made["tokens"]) if base and made else None
        if first is not None:
            found[row.run.pk] = (first[0] + 1, first[1] + 1)
    return found


def sentences(view: Generations, where: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> list[str]:
    """The first sentences of the page: `headlines`, whether the texts are the same, the least memory, what was
    disturbed, how far the study is, and what has no result. `where`: see `differences`."""
    said = [*headlines(view), *_sameness(view, where), *_memory(view.splits)]
    said += _disturbed(view) if view.disturbed else []
    done = sum(row.done for row in view.rows)
    if view.open and done:
        have = "has generated its" if done == 1 else "have generated their"
        said.append(f"{done} of {len(view.rows)} runs {have} text so far.")
    said += [
        f"What {row.label} generated has not arrived."
        for row in view.rows
        if row.run.state == State.SUCCEEDED and not row.done
    ]
    return [*said, *excluded.sentences([(row.label, row.run) for row in view.rows])]


def headlines(view: Generations) -> list[str]:
    """The fastest split and why, after a warning where all times were disturbed, and before one where machines
    differ."""
    first = [] if view.disturbed else _disturbed(view)
    warning = view.machines.warning
    return [*first, _answer(view, view.compared), *([warning] if warning else [])]


def _answer(view: Generations, found: Sequence[Row]) -> str:
    if found:
        why = _why(view, found)
        return f"{_speed(view, found)}{f'; {why}' if why else ''}."
    every = plural_text(len(view.rows), "run")
    return f"0 of {every} generated text{' so far' if view.open else ''}."


def _speed(view: Generations, found: Sequence[Row]) -> str:
    """The fastest split against the single device."""
    best, reached = found[0], f"{rate_text(found[0].rate or 0.0)} at the median token"
    if len(found) == 1 and view.disturbed:
        return f"{best.label} alone was not disturbed: {reached}"
    if len(found) == 1:
        return f"{best.label} alone has a result{' so far' if view.open else ''}: {reached}"
    if view.single is None:
        return f"{best.label} is fastest of {len(found)}, {reached}; the single device {_without_single(view)}"
    if best.split == ONE:
        other = found[1]
        noise = common.noise(other.speed, "token") if other.speed else ""
        reaches = f"{other.label} reaches {_over(other)} of it{noise}"
        return f"No split is faster than the single device, {reached}: {reaches}"
    if best.speed and (noise := common.noise(best.speed, "token")):
        return f"{best.label} is fastest, but{noise.removeprefix(',')}: {reached}, {_over(best)} the single device"
    return f"{best.label} is fastest: {reached}, {_over(best)} the single device"


def _without_single(view: Generations) -> str:
    """Why nothing is compared with the single device."""
    if any(row.split == ONE for row in view.disturbed):
        return "was disturbed"
    return f"has no result{' yet' if any(row.split == ONE for row in view.open) else ''}"


def _why(view: Generations, found: Sequence[Row]) -> str:
    """Why the fastest split is fastest, or why no split is faster than the single device; '' if there is none to say
    it of, or its ranks have not told where a token goes."""
    best = found[0]
    if view.single is None or len(found) == 1:
        return ""
    row = found[1] if best.split == ONE else best
    tp, pp, dp = row.split
    if best.split != ONE and row.speed and row.speed.within_noise:
        return ""
    if tp == pp == 1:
        return f"its {dp} replicas {'share out the texts and ' if best.split != ONE else ''}exchange nothing"
    if row.parts is None:
        return ""
    talks = f"communication takes {percent_text(row.parts.communication)} of a token"
    if best.split == ONE:
        return f"one stage works at a time, and {talks}" if tp == 1 else talks
    return f"each rank computes 1/{tp} of a layer, and {talks}" if tp > 1 else talks


def _disturbed(view: Generations) -> list[str]:
    """Which times are left out since other processes disturbed them; a warning if they are all there is."""
    if left := view.disturbed:
        named = listed_text([row.label for row in left[:NAMED]] + ([f"{len(left) - NAMED} more"] * (len(left) > NAMED)))
        share = percent_text(max(row.others or 0.0 for row in left))
        verb = "was" if len(left) == 1 else "were"
        return [f"{named} {verb} disturbed: others used up to {share} of a device, so their times are left out."]
    every = cautions.disturbed([row.others for row in view.rows if row.done], DISTURBED_ABOVE)
    return [every] if every else []


def _over(row: Row) -> str:
    """The ratio of its tokens/s to those of the single device, with its whiskers if enough tokens were timed."""
    speed = row.speed
    if speed is None or speed.few:
        return ratio_text(speed.ratio) if speed else ""
    return f"{ratio_text(speed.ratio)} ({ratio_text(speed.low)} to {ratio_text(speed.high)})"


def _memory(found: Sequence[Row]) -> list[str]:
    """Where a rank needs least memory; [] if it was measured nowhere."""
    peaks = {row.label: row.peak for row in found if row.peak is not None}
    if not peaks:
        return []
    size = bytes_text(min(peaks.values()))
    if len(found) == 1:
        return [f"Its worst rank needs {size}."]
    least = [label for label, peak in peaks.items() if bytes_text(peak) == size]
    if len(least) == len(found):
        return [f"Each needs {size} on its worst rank."]
    if len(least) == 1:
        return [f"{least[0]} needs least memory, {size} on its worst rank."]
    named = listed_text(least) if len(least) <= NAMED else f"{len(least)} splits"
    return [f"{named} need least memory, {size} on their worst ranks."]


def _sameness(view: Generations, where: Mapping[int, tuple[int, int]]) -> list[str]:
    """Whether all runs generated the same text; [] if there is nothing to compare."""
    base, unlike, count = view.reference, view.unlike, len(view.splits)
    if base is None or not unlike:
        return [f"All {count} splits generate the same text."] if count > 1 else []
    told = [f"{row.label}{_first(where.get(row.run.pk))}" for row in unlike[:NAMED]]
    more = [f"{len(unlike) - NAMED} more"] if len(unlike) > NAMED else []
    verb = "does" if len(unlike) == 1 else "do"
    other = "the single device" if base.split == ONE and count > 1 else base.label
    return [f"{listed_text([*told, *more])} {verb} not generate the text of {other}."]


def grown(found: Sequence[Row]) -> str:
    """Whether late tokens of the fastest split take longer, as the title of the chart over the position. Reads what its
    ranks have stored."""
    row = next((row for row in found if row.positions), None)
    told = text_times.grown(row.run, row.label) if row else ""
    return told or ("No text is long enough to see whether its tokens take longer." if found else "")


def _first(found: tuple[int, int] | None) -> str:
    return f" (from token {found[1]} of text {found[0]} on)" if found else ""
