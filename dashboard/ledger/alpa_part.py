"""A part of the Partition page: Alpa's two-level plan for the profiled model on a worker's devices, and other plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dashboard.analyst.models import Search
from dashboard.analyst.services import ask
from dashboard.ledger.fleet_page import run_address
from dashboard.ledger.models import Profile
from dashboard.ledger.optimizers import named, with_optimizer
from dashboard.ledger.shown_table import shown_table
from parallel_core.analysis.quantities import bytes_text, percent_text, seconds_text
from parallel_core.outline import outline_of
from parallel_core.outline.splits import IN_WORDS
from parallel_core.plan.alpa.inter import MOST_GROUPS
from parallel_core.plan.alpa.plans import OVERSIZE
from parallel_core.plan.pipedream import Form
from parallel_core.plan.room import Room
from parallel_core.searches.alpa import MOST_DEVICES, Answer, Question
from parallel_core.searches.alpa import Row as Found
from parallel_core.spec import RunSpec


@dataclass(frozen=True)
class Row:
    """One plan: step time by Alpa's equation 2 and by the simulator; `run` = the address of New run if it can run."""

    name: str
    cuts: str = ""
    meshes: str = ""
    seconds: str = ""
    simulated: str = ""
    memory: str = ""
    note: str = ""
    run: str = ""


class Part:
    """The contents of the part. `samples` = of a micro-batch, `devices` = of one host, `form` = the form of PipeDream's
    costs, as elsewhere on the page, so that both give the same optimum. Plans must fit the memory of the profile's
    worker, if that is known. Raises ValueError if the profile lacks data."""

    def __init__(
        self, profile: Profile, samples: int, devices: int, form: Form, asker: Any, optimizer: str = ""
    ) -> None:
        self._asker, self._optimizer = asker, optimizer
        self.profile, self.samples, self.devices, self.form = profile, samples, min(devices, MOST_DEVICES), form
        self._room = Room.on(profile.worker.device_memory, RunSpec.stored(profile.spec).train.device)
        question = Question.model_validate(self._question())
        question.costs()  # raises if they are incomplete, before the search is queued
        self.micro_batches, self.norms = question.micro_batches, outline_of(question.table.model).norms
        known = {cut for tp, _, cut in question.table.conditions if tp > 1}
        cuts = [(words, cut in known) for cut, words in IN_WORDS.items() if words]
        self.measured, self.missing = ([words for words, able in cuts if able is there] for there in (True, False))

    def _question(self) -> dict[str, Any]:
        spec = with_optimizer(self.profile.spec, self._optimizer)
        return {"spec": spec, "table": shown_table(self.profile), **self._asked()}

    def _asked(self) -> dict[str, Any]:
        memory = self._room.usable if self._room else None
        return {"samples": self.samples, "devices": self.devices, "form": self.form, "memory": memory}

    @property
    def optimizer(self) -> str:
        """The optimizer that the plans count with."""
        return named(self._optimizer)

    @property
    def each(self) -> str:
        """The memory of a device as text; '' if the worker does not report it."""
        return f" of {self._room.text}" if self._room else ""

    @cached_property
    def search(self) -> Search:
        """The search for the plans. Its key can name the profile by id, as a finished profile never changes."""
        about = {"profile": self.profile.pk, "done": str(self.profile.done_at), "optimizer": self._optimizer}
        return ask("alpa", about | self._asked(), self._question, asker=self._asker)

    @cached_property
    def found(self) -> Answer:
        return Answer.model_validate(self.search.answer)

    def sentence(self) -> str:
        """The fastest plan, or what was found of it, and whether it can run, as sentences."""
        first, able, unfinished = self.found.rows[0], self.found.runnable, self.found.unfinished
        fits = " that fits" if self._room else ""
        if first.name == OVERSIZE:
            return f"{unfinished} With more memory {_step(first)} of any plan: {_shape(first)}."
        among = "of the plans found" if unfinished else f"of any plan{fits}"
        best = self._fastest
        of = f" by {best.name}" if best is not first else ""
        said = f"{unfinished} {_step(best)} {among}{of}: {_shape(best)}."
        if able is None:
            run = _no_run(unfinished, fits)
        elif best.spec is not None:
            run = "It can run."
        else:
            run = f"The best that can run takes {able / _seconds(best):.2f} times as long."
        return f"{said} {run} {self._beaten(best)}".strip()

    @property
    def _fastest(self) -> Found:
        """The first plan, unless another of the table is faster by more than is seen there."""
        first, *others = self.found.rows
        timed = [row for row in others if row.seconds is not None and row.name != OVERSIZE]
        least = min(timed, key=_seconds, default=first)
        seen = seconds_text(_seconds(least)) != seconds_text(_seconds(first))
        return least if seen and _seconds(least) < _seconds(first) else first

    def _beaten(self, best: Found) -> str:
        """Why another method has a faster plan than Alpa's optimum; '' if none has."""
        first = self.found.rows[0]
        if best is first:
            return ""
        longer = f"{first.name} takes {percent_text(_seconds(first) / _seconds(best) - 1)} longer"
        return f"{longer}: it cuts between {MOST_GROUPS} groups of layers at most, over 1, 2, 4 … devices a stage."

    def stages(self) -> tuple[str, ...]:
        """One line for each stage of the optimum."""
        return self.found.stages

    def rows(self) -> list[Row]:
        """The optimum, the fastest plan that can run, and the plans of other methods."""
        return [_row(found) for found in self.found.rows]


def _seconds(found: Found) -> float:
    return found.seconds or 0.0


def _step(found: Found) -> str:
    return f"{seconds_text(_seconds(found))} a step is the least"


def _no_run(unfinished: str, fits: str) -> str:
    if unfinished:
        return "None that can run was found."
    return f"No run of this model has {f'a plan{fits}' if fits else 'such a plan'}."


def _row(found: Found) -> Row:
    if found.seconds is None:
        return Row(found.name, note=found.why_not)
    return Row(
        found.name,
        ", ".join(map(str, found.cuts)) or "none",
        _shape(found),
        seconds_text(found.seconds, zeros=True),
        seconds_text(found.simulated, zeros=True) if found.simulated else "",
        bytes_text(found.memory or 0, zeros=True),
        found.why_not,
        run_address(found.spec) if found.spec else "",
    )


def _shape(found: Found) -> str:
    """`2 x 1, 1 x 2`: dp x tp of each stage."""
    return ", ".join(f"{dp} × {tp}" for dp, tp in found.meshes)
