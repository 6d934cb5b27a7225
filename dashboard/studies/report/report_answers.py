"""The questions that a study is to answer, each with an answer written from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.urls import reverse

from dashboard.charts import capacity
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from dashboard.studies.comparability import same_work
from dashboard.studies.overview import answers, slowest
from dashboard.studies.overview.entries import taken_of
from dashboard.studies.overview.overviews import SIDE_BY_SIDE, Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import cautions, sentences
from parallel_core.analysis.align import Side, align_sides, sentence
from parallel_core.analysis.causes import LOSSES
from parallel_core.analysis.diagnosis.case import REPLAYED
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import (
    apart_text,
    count_text,
    listed_text,
    percent_text,
    plural_text,
    ratio_text,
)
from parallel_core.simulate.replay import FREE, Change, replay

READ = 24
"""The most runs whose traced step is read, fastest first."""
FIRST = 5
"""Lines of an answer that are shown before it is unfolded."""
MOST_NAMED = 4
"""The most strategies whose largest model is named."""
MOST_LEFT = 4
"""The most runs that are named as not replayed for one reason."""
MOST_FREED = 8
"""The most replayed runs that have a line each."""


class Written(NamedTuple):
    """An answer: `lines` are whole sentences; `links` = (words, address) of places that show more."""

    question: str
    lines: list[str]
    links: list[tuple[str, str]]

    @property
    def first(self) -> list[str]:
        """The lines shown before the answer is unfolded."""
        return self.lines[:FIRST]

    @property
    def rest(self) -> list[str]:
        return self.lines[FIRST:]


def steps_of(view: Overview) -> dict[int, Trace]:
    """run id -> the traced step that stands for the run."""
    done = view.by_time[:READ]
    found = ((row.run.pk, traces.typical(row.run)) for row in done)
    return {pk: trace for pk, trace in found if trace is not None}


def of_overview(view: Overview, steps: Mapping[int, Trace]) -> list[Written]:
    """The answers, on runs of the baseline's kind of model; [] until two have a result. What was not measured is
    said."""
    view = view.like_for_like
    done = view.by_time
    if view.base is None or len(done) < 2:
        return []
    return [
        *_of_speed(view, done, steps),
        Written("Do the ranks run the same operators?", *_operators(done, steps)),
        *([] if view.side_by_side else [_recomputation(view)]),
        Written("Which takes the least memory?", _memory(view), [("Memory", "#memory")]),
        Written("How many layers fit?", _layers(view), [("Largest model", "#capacity")]),
    ]


def _of_speed(view: Overview, done: Sequence[Row], steps: Mapping[int, Trace]) -> list[Written]:
    """The answers that compare times; why there is none if the runs shared their hosts."""
    fastest = "Which is fastest, which slowest, and why?"
    if view.side_by_side:
        return [Written(fastest, [SIDE_BY_SIDE], [])]
    return [
        Written(fastest, _extremes(view, done), _to(done[0], done[-1])),
        Written(slowest.QUESTION, [slowest.sentence(view, done)], [("Time against memory", "#tradeoff")]),
        Written("What would the speedup be with free communication?", *_free(done, steps)),
    ]


def _to(*rows: Row) -> list[tuple[str, str]]:
    """Links to the runs' own pages."""
    return [(row.entry.label, reverse("runs:page", args=[row.run.pk])) for row in rows]


def _at_step(rows: Sequence[Row], steps: Mapping[int, Trace], tab: str) -> list[tuple[str, str]]:
    """Links to the tab of the runs' own pages that shows more, of the step that was read here."""
    return [
        (label, f"{page}?tab={tab}&step={steps[row.run.pk].step}#details") for row in rows for label, page in _to(row)
    ]


def _extremes(view: Overview, done: Sequence[Row]) -> list[str]:
    if view.base is None:
        return []
    said = [sentences.fastest(view.results, view.base), *_goes(done[0])]
    said += [sentences.slowest(view.results, view.base), *_goes(done[-1])]
    first, last = (row.entry.breakdown for row in (done[0], done[-1]))
    if not same_work(done[0].spec, done[-1].spec):
        return said
    return [*said, sentences.difference_sentence(last, first)] if first and last else said


def _goes(row: Row) -> list[str]:
    """What the run's traced step consists of."""
    parts = row.entry.breakdown
    if parts is None:
        return []
    name = max(LOSSES, key=parts.share)
    lost = f"; the largest loss is {COMPONENT_NAMES[name]} with {percent_text(parts.share(name))}"
    compute = f"{percent_text(parts.share('compute'))} of its traced step is compute"
    return [f"{compute}{lost if parts.share(name) else ''}."]


def _free(done: Sequence[Row], steps: Mapping[int, Trace]) -> tuple[list[str], list[tuple[str, str]]]:
    """Each traced step replayed with messages and collectives that take no time, and which runs were not replayed; and
    links to explore the first of them."""
    said: list[tuple[float, str, Row]] = []
    left: dict[str, list[str]] = {}
    single = any(row.entry.baseline and row.run.devices == 1 for row in done)
    for place, row in enumerate(done):
        if row.spec.parallel.world == 1 or row.entry.speed is None:
            continue
        found = _replayable(row, steps.get(row.run.pk), place)
        if isinstance(found, str):
            left.setdefault(found, []).append(row.entry.label)
            continue
        gain = found.measured.step / replay(found.trained, found.measured, Change(links=FREE)).step
        now = row.entry.speed.ratio
        most = row.run.devices if single else None
        said.append((now * gain, freed(row.entry.label, now, gain, most), row))
    said.sort(key=lambda one: one[0], reverse=True)
    if not said:
        return ["No traced step of several devices can be replayed.", *_left_out(0, left)], []
    noisy = cautions.disturbed([taken_of(row.run) for _, _, row in said], DISTURBED_ABOVE)
    lines = [text for _, text, _ in said[:MOST_FREED]]
    lines += filter(None, (_rest([ratio for ratio, _, _ in said[MOST_FREED:]]), noisy))
    shown = min(len(lines), FIRST - 1)  # the first line is not the best of all where runs are left out
    return [*lines[:shown], *_left_out(len(said), left), *lines[shown:]], _at_step([said[0][2]], steps, "whatif")


def _rest(reached: Sequence[float]) -> str:
    """What the further runs would reach, most first; '' if there are none."""
    if not reached:
        return ""
    most, least = ratio_text(reached[0]), ratio_text(reached[-1])
    return f"{len(reached)} more would reach {least if least == most else f'{least} to {most}'}."


def _replayable(row: Row, trace: Trace | None, place: int) -> Trace | str:
    """The trace if its step can be replayed, else why not; '' where it was not read. `place`: how many are faster."""
    if not row.spec.parallel.flushes:
        return "their pipelines never flush"
    if trace is None:
        return "no step was traced by all ranks" if place < READ else ""
    try:
        trace.measured  # noqa: B018 - costs are measured, and kept, here
    except ValueError:
        return "their steps have too many spans" if trace.kept > REPLAYED else "spans of their steps are missing"
    return trace


def _left_out(replayed: int, left: Mapping[str, Sequence[str]]) -> list[str]:
    """A line on the runs that were not replayed, `left` by the reason; [] if there are none."""
    if not left:
        return []
    parts = [f"{replayed} of {plural_text(replayed + sum(map(len, left.values())), 'run')} replayed."]
    for why, labels in left.items():
        if not why:
            parts.append(f"{plural_text(len(labels), 'run')} not, as only the {READ} fastest are read.")
            continue
        more = [f"{len(labels) - MOST_LEFT} more"] if len(labels) > MOST_LEFT else []
        parts.append(f"Not replayed, since {why}: {apart_text([*labels[:MOST_LEFT], *more])}.")
    return [" ".join(parts)]


def freed(label: str, now: float, gain: float, devices: int | None) -> str:
    """What free communication makes of a speedup of `now`: `gain` times as much. `devices`: so many as a speedup over
    one of them can be held against; None where it is over several."""
    before, after = ratio_text(now), ratio_text(now * gain)
    if before == after:
        return f"{label} would stay at {before}: next to nothing of its step is communication that is not hidden."
    over = f", more than {devices} devices give at the baseline's pace" if devices and now * gain > devices else ""
    return f"{label} would reach {after} instead of {before}{over}."


def _operators(done: Sequence[Row], steps: Mapping[int, Trace]) -> tuple[list[str], list[tuple[str, str]]]:
    """Compares the first two ranks of the fastest run of each family; and links to those runs' own tables."""
    said: dict[str, str] = {}
    rows: list[Row] = []
    for row in done:
        trace = steps.get(row.run.pk)
        if trace is None or row.entry.family in said or len(trace.spans) < 2:
            continue
        one, two = sorted(trace.spans)[:2]
        a, b = (Side(trace.trained, rank, trace.spans[rank]) for rank in (one, two))
        text = sentence(a, b, align_sides(a, b), (f"rank {one}", f"rank {two}"))
        named = text.startswith(f"Rank {one} ")  # it begins with what each has
        what = f": r{text[1:]}" if named else f", rank {one} against rank {two}: {text}"
        said[row.entry.family] = f"{row.entry.label}{what}"
        rows.append(row)
    return list(said.values()) or ["No run of several ranks has been traced."], _at_step(rows, steps, "operators")


def _recomputation(view: Overview) -> Written:
    """What it saves, and for how much time."""
    found = [f"{one.question}: {one.answer}, {one.detail}" for one in answers.recomputation(view)]
    said = found or ["Not measured: no two runs differ in recomputation alone."]
    return Written("How does recomputation help?", said, [("Time against memory", "#tradeoff")])


def _memory(view: Overview) -> list[str]:
    least = sentences.least_memory(view.results)
    return [least, sentences.memory_title(view.results, view.limit)] if least else ["No run was metered."]


def _layers(view: Overview) -> list[str]:
    found = ((e.largest, e.label) for e in view.entries if e.largest is not None)
    known = sorted(found, key=lambda one: -one[0])  # the first of equal ones, as in the title
    said = [capacity.title(view.entries, view.room)]
    if view.room and known and (least := known[-1][0]) < known[0][0]:
        between = [f"{label}: {count_text(most)}" for most, label in known if least < most < known[0][0]][
            : MOST_NAMED - 1
        ]
        verb, fewest = "is" if len(between) == 1 else "are", [label for most, label in known if most == least]
        said += [f"Next {verb} {apart_text(between)}."] if between and len(known) > MOST_NAMED else []
        who, hold = listed_text(sentences.shortened(fewest)), "holds" if len(fewest) == 1 else "hold"
        said.append(f"{who} {hold} the fewest, {count_text(least)}. All are predicted.")
    return said
