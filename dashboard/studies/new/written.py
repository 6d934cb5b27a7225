"""What a person writes into a matrix beside the boxes to tick: pipelines whose stages differ, own schedules, and layers
that recompute.

Each is kept as its text, in the form as in the study's settings; `read` returns its meaning. All raise ValueError with
what is wrong and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel_core import limits
from parallel_core.analysis.quantities import count_text
from parallel_core.outline.recompute import label_of
from parallel_core.rules.stages import dashed_text
from parallel_core.schedule import custom
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.table import TableError

MAX_OWN_NAME = 40
"""Longest name of an own schedule, in characters: it is part of the names of its runs."""
MOST_OWN = 16
"""The most own schedules of a study."""
MOST_PROGRAMS = limits.MAX_PROGRAM
"""The most characters of all own schedules of a study together."""
_STAGE = re.compile(r"(\d{1,9})(?:\s*[x×]\s*(\d{1,9}))?")
_LAYERS = re.compile(r"(?:(full|selective)\b)?\s*(?:layers?\b\s*)?(\d{1,9}(?:[\s,]+\d{1,9})*)", re.IGNORECASE)


def shown(text: str) -> str:
    """The text as messages and names repeat it."""
    return text if len(text) <= MAX_OWN_NAME else f"{text[:MAX_OWN_NAME]}…"


@dataclass(frozen=True)
class StageSplit:
    """A pipeline of which each stage has its own number of replicas, and of tensor ranks of each replica.

    Written as in PipeDream's paper (Narayanan et al. 2019): `15-1`; with tensor ranks `2x1-1x2`.
    """

    replicas: tuple[int, ...]
    widths: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> StageSplit:
        stages = [_STAGE.fullmatch(part.strip()) for part in text.split("-")]
        found = [(int(stage[1]), int(stage[2] or 1)) for stage in stages if stage]
        if len(found) < len(stages):
            raise ValueError(
                f"“{shown(text)}” is no split by stage; write the replicas of each stage, such as 2-1, "
                "or its replicas x tensor ranks, such as 2x1-1x2."
            )
        if not 2 <= len(found) <= limits.MAX_STAGES:
            raise ValueError(
                f"“{shown(text)}” has {len(found)} stage{'s' * (len(found) > 1)}; "
                f"write 2 to {limits.MAX_STAGES} of them, such as 2-1."
            )
        if any(not 1 <= number <= limits.MAX_DEGREE for stage in found for number in stage):
            raise ValueError(f"Each number of “{shown(text)}” must be from 1 to {count_text(limits.MAX_DEGREE)}.")
        replicas, widths = zip(*found, strict=True)
        return cls(replicas, widths)

    def __str__(self) -> str:
        if max(self.widths) == 1:
            return dashed_text(self.replicas)
        return "-".join(f"{copies}x{width}" for copies, width in zip(self.replicas, self.widths, strict=True))

    @property
    def world(self) -> int:
        """Number of devices."""
        return sum(copies * width for copies, width in zip(self.replicas, self.widths, strict=True))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of ParallelSpec; where stages do not differ, the one number for all of them."""
        copies = {"dp": self.replicas[0]} if len(set(self.replicas)) == 1 else {"replicas": self.replicas}
        width = {"tp": self.widths[0]} if len(set(self.widths)) == 1 else {"widths": self.widths}
        return {"pp": len(self.replicas), **copies, **width}


@dataclass(frozen=True)
class OwnSchedule:
    """A schedule as CSV or JSON (`schedule.table`); a study's only one may have no name."""

    name: str
    program: str

    @property
    def schedule(self) -> Schedule:
        """What the program says; read once, as `custom.read` is cached. Raises ValueError."""
        try:
            return custom.read(self.program)
        except (TableError, ScheduleError) as error:
            raise ValueError(f"In “{self.name}”, {error}" if self.name else str(error)) from error

    @property
    def world(self) -> int:
        """Number of devices."""
        return self.schedule.pipeline_ranks


def read_schedules(text: str) -> list[OwnSchedule]:
    """The schedules of a text in which each begins with a line `# its name`; one alone needs none."""
    found: list[tuple[str, list[str]]] = []
    for line in text.lstrip("\ufeff").splitlines():
        if line.lstrip().startswith("#"):
            found.append((line.strip().lstrip("#").strip(), []))
        elif found:
            found[-1][1].append(line)
        elif line.strip():
            found.append(("", [line]))
    made = [OwnSchedule(name, "\n".join(lines).strip("\r\n")) for name, lines in found]
    _check_names([own.name for own in made])
    if (size := sum(len(own.program) for own in made)) > MOST_PROGRAMS:
        most = f"{MOST_PROGRAMS // 1024} KiB"
        raise ValueError(f"The schedules of a study have at most {most} together; these have {size} characters.")
    for own in made:
        own.schedule  # noqa: B018  refuses what cannot be read
    return made


def _check_names(names: Sequence[str]) -> None:
    if len(names) > MOST_OWN:
        raise ValueError(f"Write at most {MOST_OWN} schedules; these are {len(names)}.")
    if "" in names and len(names) > 1:
        at = names.index("") + 1
        raise ValueError(f"Schedule {at} of {len(names)} has no name; begin each with a line “# its name”.")
    if long := next((name for name in names if len(name) > MAX_OWN_NAME), None):
        raise ValueError(f"“{shown(long)}” has {len(long)} characters; a name has at most {MAX_OWN_NAME}.")
    if odd := next((name for name in names if not name.isprintable()), None):
        raise ValueError(f"“{ascii(odd)[1:-1]}” has characters that cannot be printed; write another name.")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"Two schedules are called “{twice}”; give each its own name.")


def schedules_text(schedules: Sequence[OwnSchedule]) -> str:
    """The inverse of `read_schedules`."""
    return "\n".join(f"# {own.name}\n{own.program}" if own.name else own.program for own in schedules)


@dataclass(frozen=True)
class Again:
    """What recomputes: `how` is a value of the spec's `recompute`; `layers` None = all blocks. Written as `full`,
    `selective`, `0, 2` (full) or `selective 0, 2`."""

    how: str
    layers: tuple[int, ...] | None = None

    @classmethod
    def read(cls, text: str) -> Again:
        """Some layers alone."""
        found = _LAYERS.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"“{shown(text)}” names no layers; write their numbers from 0 on, such as 0, 2, "
                "after the word selective if only attention cores are to recompute."
            )
        layers = sorted({int(number) for number in found[2].replace(",", " ").split()})
        if len(layers) > limits.MAX_STAGES:
            raise ValueError(
                f"Write at most {count_text(limits.MAX_STAGES)} layers; these are {count_text(len(layers))}."
            )
        return cls((found[1] or "full").lower(), tuple(layers))

    def __str__(self) -> str:
        if self.layers is None:
            return self.how
        return f"{'' if self.how == 'full' else f'{self.how} '}{', '.join(map(str, self.layers))}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of ParallelSpec."""
        return {"recompute": self.how, "recompute_layers": self.layers}

    @property
    def label(self) -> str:
        """The part of a strategy's name; '' without recomputation."""
        return label_of(self.how, self.layers)
