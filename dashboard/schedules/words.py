"""Sentences and tables of the Schedules page: which of two schedules is shorter, which keeps less."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.form.choice_labels import CHOICE_LABELS
from parallel_core.analysis.quantities import most_percent_text, percent_text, plural_text, significant
from parallel_core.plan.orders.search import FoundOrder
from parallel_core.schedule.traits import takes_early_gradients
from parallel_core.simulate.schedule_preview import EARLY, UNIT, SchedulePreview
from parallel_core.simulate.typed_stages import Stage

EARLY_ONES = [f"{name}{EARLY}" for name in takes_early_gradients()]
LABELS = {
    **CHOICE_LABELS,
    **{name: f"{CHOICE_LABELS[name.removesuffix(EARLY)]}, early gradients" for name in EARLY_ONES},
    "found": "Found order",
    "found-v": "Found order as a V",
}
"""Labels of every schedule that the page can show."""
BARRIER = "… without a barrier at the end of the step"


def name(made: SchedulePreview) -> str:
    return LABELS[made.schedule.name]


def units(nanoseconds: float) -> str:
    return significant(nanoseconds / UNIT)


def _counted(text: str) -> str:
    """A number of units as text, with its word: `1 unit`, `1.5 units`."""
    return f"{text} unit{'' if text == '1' else 's'}"


def finding(made: SchedulePreview) -> str:
    """The title of one schedule's picture."""
    worst = max(made.kept)
    return (
        f"{name(made)}: {_counted(units(made.length))}, {percent_text(made.fraction)} of them idle; "
        f"{_kept(worst)} at most."
    )


def comparison(found: Sequence[SchedulePreview]) -> str:
    """The verdict: one or two sentences with the numbers of both."""
    if len(found) < 2:
        one = found[0]
        are = f"{plural_text(one.devices, 'device')} {'is' if one.devices == 1 else 'are'}"
        return f"{significant(one.working)} of {are} busy on average in {name(one)}."
    a, b = found
    return f"{_length(a, b)} {_memory(a, b)}"


def proof(found: FoundOrder) -> str:
    """How close an order that was searched for is to the shortest possible one."""
    if found.length <= found.bound:
        return f"Proven: no order {found.laid} within this limit is shorter than the one found."
    return (
        f"The order found is {most_percent_text(found.gap)} from the shortest: "
        f"none {found.laid} takes less than {_counted(units(found.bound))}."
    )


def _length(a: SchedulePreview, b: SchedulePreview) -> str:
    if a.length == b.length:
        return f"{_counted(units(a.length))}: {name(a)} and {name(b)} take equally long."
    fast, slow = sorted((a, b), key=lambda made: made.length)
    ratio = significant(slow.length / fast.length)
    if ratio == "1":
        return f"{name(fast)} is less than 1 % faster than {name(slow)}."
    return (
        f"{name(fast)} is {ratio} times as fast as {name(slow)}: "
        f"{significant(fast.working)} of {fast.devices} devices busy, not {significant(slow.working)}."
    )


def _memory(a: SchedulePreview, b: SchedulePreview) -> str:
    little, much = sorted((a, b), key=lambda made: max(made.kept))
    if max(little.kept) == max(much.kept):
        return f"Both keep {_batches(max(little.kept))} at most."
    return f"{name(little)} keeps {_batches(max(little.kept))} at most, {name(much)} {significant(max(much.kept))}."


def _kept(count: float) -> str:
    return f"{_batches(count)} kept"


def _batches(count: float) -> str:
    return f"{significant(count)} micro-batch{'' if count == 1 else 'es'}"


def versions(made: SchedulePreview) -> int:
    """Weight versions that the worst device holds at once."""
    held = {"flush": 1, "none": 1, "2bw": 2}.get(made.schedule.sync)
    return held or max(1, round(max(made.in_flight)))


def table(found: Sequence[SchedulePreview], typed: bool = False) -> list[tuple[str, list[str]]]:
    """(what, a value for each schedule). For `typed` stages without the row on barriers."""
    rows = [
        ("Step, in units", [units(made.length) for made in found]),
        ("Bubble, of all device time", [percent_text(made.fraction) for made in found]),
        ("Bubble, as overhead on the work", [percent_text(made.overhead) for made in found]),
        (BARRIER, [percent_text(made.skewed) for made in found]),
        ("Devices busy on average", [f"{significant(made.working)} of {made.devices}" for made in found]),
        ("Most activations kept, in micro-batches", [significant(max(made.in_flight)) for made in found]),
        ("… with what weight gradients still need", [significant(max(made.kept)) for made in found]),
        ("Weight versions", [str(versions(made)) for made in found]),
    ]
    return [row for row in rows if not (typed and row[0] == BARRIER)]


def places(stages: Sequence[Stage]) -> dict[int, str]:
    """What each device holds: the name of a typed stage and, if it has several replicas, which of them."""
    held = [
        f"{stage.name} {replica + 1} of {stage.replicas}" if stage.replicas > 1 else stage.name
        for stage in stages
        for replica in range(stage.replicas)
    ]
    return dict(enumerate(held))


def pace(stages: Sequence[Stage]) -> str:
    """Which typed stage is the slowest for a micro-batch, and how slow the next one is."""
    slow, *rest = sorted(stages, key=lambda stage: -stage.pace)
    said = f"{_counted(significant(slow.pace))} a micro-batch: {slow.name} sets the pace"
    if not rest:
        return f"{said}."
    if rest[0].pace == slow.pace:
        return f"{said}, with {rest[0].name}."
    return f"{said}; {rest[0].name} is next with {significant(rest[0].pace)}."


def stage_table(stages: Sequence[Stage], found: Sequence[SchedulePreview]) -> list[list[str]]:
    """One row a typed stage: name, devices, forward, backward, pace, then how busy its devices are in each preview."""
    out, first = [], 0
    for stage in stages:
        own = range(first, first := first + stage.replicas)
        backward = "forward only" if stage.backward is None else significant(stage.backward)
        cells = [stage.name, str(stage.replicas), significant(stage.forward), backward, significant(stage.pace)]
        out.append(cells + [percent_text(made.busy_of(own)) for made in found])
    return out
