"""Reads a file that `analysis.export` wrote: the spans of a step with nanosecond precision, and the spec of its run.

Nothing is inferred: what the file lacks is reported as missing. As the file may have been edited or truncated, every
number in it is checked, and the spec is validated like any other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from parallel_core import limits
from parallel_core.analysis.export import CLOCK, FIELDS, FORMAT, MARK
from parallel_core.analysis.quantities import count_text, listed_text, plural_text
from parallel_core.analysis.rows import durations
from parallel_core.layout import Layout
from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS
from parallel_core.spec import RunSpec, field_errors

MOST_RANKS = 4_096
LATEST_NS = 1 << 50
"""Latest time from the start of a step (13 days): up to there a float64 in microseconds is exact to the nanosecond."""
MOST_CUTS = 10_000_000
"""Limit of the work to find the cuts, about half a second; 24 uneven stages and 200 layers need a tenth of it."""
LONGEST_NAME = 120
SAID = 3
"""Largest number of invalid spec fields, or of ranks, that a note lists."""
_KINDS = {kind.name: int(kind) for kind in Kind}
_LANES = {word: i for i, word in enumerate(LANES)}
_BOUNDS = tuple(
    (name, -1 if name in ("stage", "micro_batch") else 0, min(int(np.iinfo(SPAN[name]).max), limits.MAX_BYTES))
    for name in FIELDS
)
_COLUMNS = ("kind", "lane", *FIELDS, "start", "end")
_FAMILIES = ("computation", "communication", "communication", "host")
"""Family of the operations of each lane."""


@dataclass
class OwnStep:
    """The contents of one file; without `spans` it could not be read, and `notes` say why."""

    step: int = 0
    run: str = ""
    device: str = "cpu"
    spec: RunSpec | None = None
    spans: dict[int, NDArray[np.void]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """Rank -> number of spans that the file should contain, according to itself."""
    recorded: int = 0
    others: float | None = None
    counted: bool = False
    notes: list[str] = field(default_factory=list)


def is_own(header: Mapping[str, Any]) -> bool:
    """Whether this is the header of a file exported by Trainyard; files of older versions are not recognized."""
    other = header.get("otherData")
    return isinstance(other, dict) and MARK in other


def read(events: Iterable[dict[str, Any]], header: Mapping[str, Any]) -> OwnStep:
    """Reads the step from the events of a file whose header `is_own`."""
    mark = header["otherData"][MARK]
    if not isinstance(mark, dict) or mark.get("format") != FORMAT or mark.get("clock") != CLOCK:
        return OwnStep(notes=[_other_format(mark)])
    out = OwnStep(
        step=_whole(mark.get("step"), 0, limits.MAX_STEPS + 1),
        run=_text(mark.get("run")),
        device="cuda" if mark.get("device") == "cuda" else "cpu",
        recorded=_whole(mark.get("recorded"), 0, limits.MAX_BYTES),
        others=_share(mark.get("others")),
        counted=mark.get("counted") is True,
        kept=_kept(mark.get("ranks")),
    )
    if type(mark.get("step")) is not int:
        out.notes.append("It does not say which step it is: it is shown as step 0.")
    if mark.get("spec") is not None:
        _take_spec(out, mark["spec"])
    _take(out, events, _whole(mark.get("begin"), -(1 << 61), 1 << 61))
    return out


def largest(spans: Iterable[NDArray[np.void]]) -> list[dict[str, Any]]:
    """Returns the operations of a rank sorted by total time: name, family, count, ns."""
    rows = np.concatenate([np.empty(0, SPAN), *spans])
    rows = rows[rows["kind"] != Kind.STEP]
    out = []
    for kind in np.unique(rows["kind"]):
        own = rows[rows["kind"] == kind]
        said, ns = WORDS.get(Kind(kind), Kind(kind).name), int(durations(own).sum())
        out.append({"name": said, "family": _FAMILIES[int(own["lane"][0])], "count": len(own), "ns": ns})
    return sorted(out, key=lambda row: -int(row["ns"]))


NO_SPEC = "The spec of its run does not hold here"
"""Beginning of the note that names the invalid fields of a spec."""


def _other_format(mark: Any) -> str:
    given = {name: mark.get(name) for name in ("format", "clock")} if isinstance(mark, dict) else {"format": mark}
    said = ", ".join(f"{name} {str(value)[:40]}" for name, value in given.items())
    return (
        f"A timeline exported by Trainyard in {said}: this version reads format {FORMAT} with times in {CLOCK}. A "
        "newer version may read it."
    )


def _take_spec(out: OwnStep, given: Any) -> None:
    """Keeps the spec if it is valid."""
    try:
        spec = RunSpec.model_validate(given)
    except ValidationError as error:
        wrong = list(field_errors(error).items())
        said = "; ".join(f"{name}: {why}" for name, why in wrong[:SAID])
        out.notes.append(f"{NO_SPEC} ({said}). {_WITHOUT}")
        return
    if spec.parallel.world > MOST_RANKS:
        world = count_text(spec.parallel.world)
        out.notes.append(f"The spec of its run has {world} ranks, {count_text(MOST_RANKS)} are read. {_WITHOUT}")
        return
    if _long_to_cut(spec):
        out.notes.append(f"Where the stages of its run are cut would take too long to find. {_WITHOUT}")
        return
    out.spec, out.device = spec, spec.train.device


_WITHOUT = "So its layout is not known: which ranks wait for each other is known from messages alone."


def _long_to_cut(spec: RunSpec) -> bool:
    """Whether finding the cuts would take too long: uneven stages without cuts need a dynamic programme of stages times
    layers squared (`plan.partition`)."""
    split = spec.parallel
    devices = {copies * width for copies, width in zip(split.copies, split.tensor_ranks, strict=True)}
    return split.cuts is None and len(devices) > 1 and split.stages * len(spec.model.units()) ** 2 > MOST_CUTS


def _take(out: OwnStep, events: Iterable[dict[str, Any]], begin: int) -> None:
    """Keeps the spans, and notes which are invalid."""
    layout = Layout.of(out.spec) if out.spec else None
    world, stages = (layout.world, layout.stages) if layout else (MOST_RANKS, 1 << 15)
    tables: dict[int, array[int]] = {}
    odd, strange = 0, 0
    for event in events:
        if event.get("ph") != "X":
            continue
        row, rank = _row(event, begin), event.get("pid")
        if row is None or type(rank) is not int or rank < 0:
            odd += 1
        elif rank >= world or (layout and not 0 <= row[2] < stages):
            strange += 1
        else:
            tables.setdefault(rank, array("q")).extend(row)
    out.spans = {rank: _table(tables[rank]) for rank in sorted(tables)}
    if odd:
        out.notes.append(f"Left out: {plural_text(odd, 'span')} whose kind, times or numbers make no sense.")
    if strange:
        of = "the layout of its run" if layout else f"{count_text(MOST_RANKS)} ranks"
        out.notes.append(f"Left out: {plural_text(strange, 'span')} of ranks or stages beyond {of}.")


def _row(event: Mapping[str, Any], begin: int) -> tuple[int, ...] | None:
    """Returns the numbers in the order of _COLUMNS; None where they are invalid."""
    name, lane, args = event.get("name"), event.get("cat"), event.get("args")
    if not isinstance(name, str) or not isinstance(lane, str) or not isinstance(args, dict):
        return None
    kind, start, length = _KINDS.get(name.partition(" ")[0]), _ns(event.get("ts")), _ns(event.get("dur"))
    if kind is None or lane not in _LANES or start is None or length is None or length < 0:
        return None
    numbers: list[int] = []
    for column, least, most in _BOUNDS:
        number = args.get(column)
        if type(number) is not int or not least <= number <= most:
            return None
        numbers.append(number)
    return (kind, _LANES[lane], *numbers, begin + start, begin + start + length)


def _ns(microseconds: Any) -> int | None:
    """Returns whole nanoseconds; None where the value is not a valid time."""
    if type(microseconds) not in (int, float) or not -LATEST_NS <= microseconds * 1000 <= LATEST_NS:
        return None
    return round(microseconds * 1000)


def _table(numbers: array[int]) -> NDArray[np.void]:
    columns = np.frombuffer(numbers, np.int64).reshape(-1, len(_COLUMNS)).T
    out = np.zeros(columns.shape[1], SPAN)
    for name, column in zip(_COLUMNS, columns, strict=True):
        out[name] = column
    return out


def _whole(value: Any, least: int, most: int) -> int:
    """Returns `value` if it is an integer within [least, most]; otherwise `least` or 0, whichever is greater."""
    return value if type(value) is int and least <= value <= most else max(least, 0)


def _share(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value <= 1 else None


def _text(value: Any) -> str:
    return "".join(c for c in value if c.isprintable())[:LONGEST_NAME] if isinstance(value, str) else ""


def _kept(value: Any) -> dict[int, int]:
    """Returns rank -> number of spans according to the file; {} where it has none."""
    if not isinstance(value, dict) or len(value) > MOST_RANKS:
        return {}
    found = {int(rank): _whole(count, 0, limits.MAX_BYTES) for rank, count in value.items() if _is_rank(rank)}
    return dict(sorted(found.items()))


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_RANKS)) and int(text) < MOST_RANKS


def lacking(own: OwnStep) -> list[str]:
    """Returns notes on what is missing: spans that ranks did not keep, and spans missing from the file."""
    kept, out = sum(own.kept.values()), []
    if own.recorded > kept > 0:
        out.append(
            f"Its ranks kept {count_text(kept)} of {count_text(own.recorded)} spans of step {own.step} when it ran."
        )
    here = {rank: len(own.spans.get(rank, ())) for rank in own.kept}
    short = [f"rank {rank} has {here[rank]} of {own.kept[rank]} spans" for rank in here if here[rank] < own.kept[rank]]
    if short:
        left = len(short) - SAID
        more = [f"{left} more {'rank has' if left == 1 else 'ranks have'} fewer, too"] if left > 0 else []
        out.append(f"In the file of step {own.step} {listed_text([*short[:SAID], *more])}.")
    return out
