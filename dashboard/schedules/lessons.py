"""The lessons of the Schedules page: each is a query that shows one thing, and a text on what to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dashboard.schedules.forms import ScheduleForm
from parallel_core.simulate.schedule_preview import EARLY

EXAMPLE = "text encoder, 1, forward only\ndenoiser, 2, 4, 2\ndecoder, 1, 2"
"""An example of typed stages."""
PLACE = "lesson"
"""Id of the element with the lesson's text, which gets the focus when a link to a lesson is followed."""


class Lesson(NamedTuple):
    """A lesson: what it teaches, the schedule to begin with and the one to compare it with, where to look, and further
    fields of the query."""

    title: str
    a: str
    b: str
    point: str
    more: Mapping[str, Any] = {}

    @property
    def asked(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, **self.more}

    @property
    def address(self) -> str:
        return f"?{urlencode(self.asked)}#{PLACE}"

    def shown(self, form: ScheduleForm) -> bool:
        """Whether the form has exactly the lesson's values: with others, the text might be wrong."""
        known: dict[str, Any] = {**form.DEFAULTS, **self.asked}
        return all(_text(form.data.get(name)) == _text(known.get(name)) for name in form.fields)


LESSONS = (
    Lesson(
        "Why micro-batches",
        "naive",
        "gpipe",
        "Naive keeps 1 device busy at a time; in GPipe a device begins as soon as the first micro-batch has come.",
    ),
    Lesson(
        "The same bubble, less memory",
        "gpipe",
        "1f1b",
        "The idle triangles are the same; look at what is kept: 1F1B frees a micro-batch before it takes the next.",
    ),
    Lesson(
        "Smaller chunks, smaller bubble",
        "1f1b",
        "interleaved",
        "2 chunks a device: the next one begins after half the wait, so the idle triangles at both ends shrink.",
    ),
    Lesson(
        "Gradients that leave early",
        "1f1b",
        f"1f1b{EARLY}",
        "Look at the right end: a gradient is sent on before those of the weights are made; the next waits less.",
    ),
    Lesson(
        "Weight gradients fill the drain",
        "1f1b",
        "zb-h1",
        "Look at the right end: ZB-H1 puts weight gradients off until they fill what is idle in 1F1B.",
    ),
    Lesson(
        "No bubble at the same memory",
        "zb-h1",
        "zb-v",
        "Device 0 holds the first chunk and the last, so its backward begins at once: 6 % are idle, not 11 %.",
    ),
    Lesson(
        "No flush, older weights",
        "1f1b",
        "1f1b-stash",
        "0 % idle, as no step waits for the one before; the price is 4 versions of the weights, under “In numbers”.",
    ),
    Lesson(
        "What slow messages cost",
        "1f1b",
        "interleaved",
        "1 unit a message lengthens both; Interleaved sends more of them, and loses half of its lead in lesson 3.",
        {"message": 1},
    ),
    Lesson(
        "Uneven stages, one with replicas",
        "gpipe",
        "1f1b",
        "2 replicas share the denoiser's 6 units, and keep up with the decoder's 3; the text encoder is mostly idle.",
        {"stages": EXAMPLE},
    ),
    Lesson(
        "A search beats the book",
        "zb-h1",
        "found",
        "For these costs the order found ends earlier than the book's; it may keep 6 micro-batches, not 4.",
        {"grad": 1.2, "weight": 0.6, "message": 0.1, "keep": 6},
    ),
)


class Chip(NamedTuple):
    """A lesson in the row of all lessons; `here` if the page shows it."""

    number: int
    lesson: Lesson
    here: bool


class LessonRow(NamedTuple):
    """The row, the lesson that the page shows, if any, and the one after it."""

    chips: list[Chip]
    here: Chip | None
    next: Chip | None


def lessons(form: ScheduleForm) -> LessonRow:
    chips = [Chip(number, lesson, lesson.shown(form)) for number, lesson in enumerate(LESSONS, 1)]
    here = next((chip for chip in chips if chip.here), None)
    return LessonRow(chips, here, chips[here.number] if here and here.number < len(chips) else None)


def _text(value: Any) -> str:
    """A field's value with normalised line ends, because browsers send different ones."""
    return "" if value is None else str(value).replace("\r\n", "\n").strip()
