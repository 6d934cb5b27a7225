"""Checks before a run is queued: does it divide, does the fleet have the devices, does it fit in memory?

Form and API use the same checks; `services.submit` then queues what passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Required, TypedDict, Unpack

from pydantic import ValidationError

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import records
from dashboard.ledger import selectors as ledger
from dashboard.ledger.selectors import Predicted
from dashboard.runs import resuming, services
from dashboard.runs.disk import short_of, unsaved
from dashboard.runs.models import Run
from dashboard.runs.texts.corpus_checks import corpus_errors
from dashboard.runs.waiting import run_on
from dashboard.runs.waiting.fleet_checks import Capacity, FleetCheck, fleet_check, with_need
from dashboard.runs.waiting.spreading import (
    chosen,
    least_memory,
    several,
    too_small,
)
from dashboard.runs.weights import token_doubt, weights_errors
from parallel_core.outline import outline_of
from parallel_core.plan.memory import Feasibility, needed, verdict
from parallel_core.plan.peak import RankMemory
from parallel_core.plan.room import Room, room_of
from parallel_core.plan.strategy import label
from parallel_core.spec import RunSpec, field_errors
from workers.contract import ResumeFrom

WARNINGS = {
    "doubt": "Its checkpoint is damaged.",
    "tokens": "Its text is none of the weights' tokens.",
    "disk": "Its checkpoints may not find room.",
    "unsaved": "Its time limit would save nothing.",
}
"""What is said before a run is queued and keeps nobody from it: the fields of an Assessment, and what each means."""


@dataclass(frozen=True)
class Assessment:
    """All checks before a run is queued. `errors` by dotted field; `memory_error` may be overruled."""

    spec: RunSpec | None = None
    errors: dict[str, str] = field(default_factory=dict)
    capacity: Capacity | None = None
    stages: list[RankMemory] = field(default_factory=list)
    """Predicted memory of each stage's ranks (the same for all ranks of a stage)."""
    feasibility: Feasibility | None = None
    limit: int = 0
    """Bytes that a rank's tensors may use; 0 = unknown."""
    memory_error: str = ""
    predicted: Predicted = field(default_factory=Predicted)
    record: str = ""
    """How accurate the yard's predictions of step times were so far."""
    hosts: list[str] = field(default_factory=list)
    """The worker of each rank, if they would be on several."""
    doubt: str = ""
    """What another run found wrong with the checkpoint from which it is to begin."""
    waits: str = ""
    """Which workers it would wait for if nothing else were in the queue, or that the controller is away."""
    disk: str = ""
    """Why there would be no room for its checkpoints."""
    unsaved: str = ""
    """Why it would save nothing at its time limit."""
    tokens: str = ""
    """That it would read text as bytes, which mean other tokens to the weights that it begins from."""

    @property
    def label(self) -> str:
        return label(self.spec) if self.spec else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The WARNINGS that there are, with what each means."""
        return tuple(f"{what} {said}" for name, what in WARNINGS.items() if (said := getattr(self, name)))


def _device(check: FleetCheck) -> Room | None:
    """The room on the devices that a run with this check `with_need` would have; None if it is not known."""
    least = least_memory(check.asks, check.fleet) if check.asks.memory else 0
    return Room.on(least, check.asks.kind) or check.offered.room


def assess(
    spec: dict[str, Any], resume_from: ResumeFrom | None = None, host_count: int = 0, where: str = ""
) -> Assessment:
    """Checks a nested spec: RunSpec's rules first, then checkpoint, fleet, corpus and memory.

    `host_count` = number of hosts to spread it over; 0 = as few as it takes. `where`: the devices chosen for it, as
    `RunOn` writes them.
    """
    on, unread = run_on.read(where)
    if unread:
        return Assessment(errors={run_on.FIELD: unread})
    try:
        parsed = RunSpec.model_validate(spec)
    except ValidationError as error:
        return Assessment(errors=field_errors(error))
    fleet = FleetSnapshot.now().narrowed(on)
    check = fleet_check(parsed, fleet, begins=resume_from, host_count=host_count)
    errors = check.errors | corpus_errors(parsed)
    errors |= resuming.check(parsed, resume_from) if resume_from is not None else weights_errors(parsed, fleet)
    if parsed.parallel.world > services.MAX_PREDICTED_RANKS:
        return Assessment(parsed, errors, check.offered)
    return _predicted(parsed, errors, with_need(parsed, check), resume_from)


def _predicted(spec: RunSpec, errors: dict[str, str], check: FleetCheck, resume_from: ResumeFrom | None) -> Assessment:
    """The assessment with what is predicted of a run with this check `with_need`."""
    found, limit = _judged(spec, check, _device(check))
    workers = chosen(check.asks, check.fleet)
    return Assessment(
        spec,
        errors,
        check.offered,
        stages=needed(spec) if found.total else [],
        feasibility=found,
        limit=limit,
        memory_error=found.sentence if found.fits is False else "",
        predicted=ledger.predicted(spec, workers),
        record=records.time_record().sentence(),
        hosts=several(workers),
        waits="" if errors else check.waits,
        **_warned(spec, errors, check, workers, resume_from),
    )


def _warned(
    spec: RunSpec, errors: dict[str, str], check: FleetCheck, workers: list[str], resume_from: ResumeFrom | None
) -> dict[str, str]:
    """The WARNINGS about a run that would have these `workers`."""
    nowhere = unsaved(spec, workers, check.fleet.every)
    return {
        "doubt": "" if errors else resuming.doubt(resume_from),
        "disk": "" if nowhere else short_of(spec, check.fleet.among(check.asks.needs)),
        "unsaved": nowhere,
        "tokens": "" if errors or resume_from is not None else token_doubt(spec, check.fleet),
    }


def _judged(spec: RunSpec, check: FleetCheck, device: Room | None) -> tuple[Feasibility, int]:
    """Returns whether it fits on such devices, with the workers that are left out, and the bytes that a rank may
    use."""
    found, room = verdict(spec, device, check.offered.most(check.alone) or None), room_of(device, spec.trace.memory_cap)
    left_out = too_small(check.asks, check.fleet) if found.fits else ""
    sentence = f"{found.sentence} {left_out}".rstrip()
    return replace(found, sentence=sentence), room.usable if room else 0


class Submission(TypedDict, total=False):
    """What a user asks for; only `spec` is required. `anyway` overrules only the predicted memory."""

    spec: Required[dict[str, Any]]
    name: str
    tags: Sequence[str]
    retries: int
    anyway: bool
    resume_from: ResumeFrom | None
    based_on: int | None
    host_count: int
    run_on: str
    priority: int


def submit(*, owner: Any, also: services.Also = services.nothing_else, **request: Unpack[Submission]) -> Run:
    """Queues the run if there is no objection; `also` gets it.

    Raises services.Invalid with every wrong field, PermissionDenied for viewers. The run that is returned has the
    `warnings` of what was checked.
    """
    return services.write_one(prepare(owner, request), also)


def prepare(owner: Any, request: Submission, study: Any = None) -> services.Prepared:
    """The part of `submit` that reads, checks and simulates. `study`: the one that the run joins, at position 0, to be
    run where the study's runs do, with nothing beside it unless these run side by side."""
    where = study.run_on if study else request.get("run_on", "")
    found = assess(request["spec"], request.get("resume_from"), request.get("host_count", 0), where)
    if errors := _against(found, request.get("anyway", False)):
        raise services.Invalid(errors)
    asked = {**request, "anyway": bool(found.memory_error) and not _cap_binds(found)}
    alone = study is not None and not study.side_by_side
    joins: services.RunRequest = {"study": study, "exclusive": alone, **asked}  # type: ignore[typeddict-item]
    prepared = services.prepare(owner=owner, requests=[joins])
    prepared.runs[0].warnings = found.warnings
    return prepared


def _against(found: Assessment, anyway: bool) -> dict[str, str]:
    """Objections by field; the predicted memory at the field that makes it too large."""
    errors = dict(found.errors)
    if found.memory_error and not anyway:
        errors.setdefault("trace.memory_cap" if _cap_binds(found) else _size_field(found), found.memory_error)
    return errors


def _size_field(found: Assessment) -> str:
    """The field for the width of the model."""
    fields = outline_of(found.spec.model).fields if found.spec else ()
    return "model.width" if "width" in fields else "model.hidden"


def _cap_binds(found: Assessment) -> bool:
    return bool(found.spec and found.spec.trace.memory_cap == found.limit)
