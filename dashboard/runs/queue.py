"""The order of queued runs for the controller, and what a queued run waits for, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest

from django.db.models import Exists, OuterRef

from dashboard.ages import span
from dashboard.control.finding import Wait
from dashboard.control.hosts import Host, Request
from dashboard.control.placement import plan
from dashboard.fleet.listening import away_for, refused_sentence
from dashboard.fleet.selectors import FleetSnapshot, hosts, kind_of
from dashboard.fleet.words import apart_text
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.runs.run_on import too_few_text, waits_for_choice
from dashboard.runs.spreading import (
    FITS_NOWHERE,
    Files,
    Holder,
    file_word,
    too_small_text,
    unable_sentence,
    versions_sentence,
    why_alone,
    word_of,
)
from parallel_core.analysis.quantities import listed_text, plural_text
from parallel_core.known_fields import needs_later
from workers.contract import task_of

PLANNED = 200
"""How many runs at the front of the queue are planned: a plan of thousands would delay every page that asks."""
RECENT = 500
"""How many of the newest starts are looked at for whose turn it is."""
FULL = (Wait.BUSY, Wait.WHOLE_HOST, Wait.RESERVED)
"""Reasons to wait that can end when another run ends."""


@dataclass(frozen=True)
class Waiting:
    """What a run waits for. `sentence` is '' for a run that is not queued; `ahead` = queued runs served before it;
    `hosts` = those whose devices it waits for."""

    sentence: str = ""
    ahead: int = 0
    hosts: tuple[str, ...] = ()


def queue_order() -> list[int]:
    """Ids of the queued runs, those of a higher priority before all others. Of one priority people take turns, so that
    one's hundred runs do not keep another's single one waiting: first comes whose last start is longest ago, of several
    the one whose run is the oldest.

    Of one's own runs the oldest comes first. Those of a study come together, by position, at the place of the oldest.
    Before the others of their priority, the oldest first, come those that were interrupted: their turn was when they
    were started.
    """
    queued = Run.objects.order_by().filter(state=State.QUEUED, cancel_requested_at=None)
    begun = Exists(Attempt.objects.filter(run=OuterRef("pk")))
    read = ("pk", "study", "queued_at", "position", "owner", "begun", "priority")
    rows = list(queued.annotate(begun=begun).values_list(*read))
    since: dict[int, datetime] = {}
    for pk, study, queued_at, *_ in rows:
        since[study or -pk] = min(queued_at, since.get(study or -pk, queued_at))
    rows.sort(key=lambda row: (since[row[1] or -row[0]], row[1] or 0, row[3], row[0]))
    last = _last_starts() if len({owner for *_, owner, _, _ in rows}) > 1 else {}
    levels = sorted({level for *_, level in rows}, reverse=True)
    each = ([(pk, owner, before) for pk, *_, owner, before, own in rows if own == level] for level in levels)
    return [pk for of_level in each for pk in _in_turns(of_level, last)]


def _in_turns(rows: Sequence[tuple[int, int, bool]], last: Mapping[int, int]) -> list[int]:
    """Ids of runs (id, owner, whether it was interrupted) of one priority in the order of `queue_order`; of several
    people whose last start is equally long ago, first comes whose run is first of `rows`."""
    of_owner: dict[int, list[int]] = {}
    for pk, owner, before in rows:
        if not before:
            of_owner.setdefault(owner, []).append(pk)
    owners = sorted(of_owner, key=lambda owner: last.get(owner, -RECENT))
    turns = [pk for turn in zip_longest(*(of_owner[owner] for owner in owners)) for pk in turn if pk is not None]
    return [pk for pk, _, before in rows if before] + turns


def _last_starts() -> dict[int, int]:
    """Owner -> the larger, the later a run of theirs was last started; without those before all RECENT ones."""
    newest = Attempt.every.order_by("-pk").values_list("run__owner", flat=True)[:RECENT]
    return {owner: -place for place, owner in reversed(list(enumerate(newest)))}


def queued_runs(ids: Sequence[int] | None = None) -> list[Run]:
    """The queued runs in that order; with `ids`, those of them that are still queued, in the order of `ids`."""
    order = queue_order() if ids is None else ids
    queued = Run.objects.order_by().filter(state=State.QUEUED, cancel_requested_at=None)
    found = queued if ids is None else queued.filter(pk__in=ids)
    runs = {run.pk: run for run in found.defer("summary").select_related("owner", "study")}
    return [runs[pk] for pk in order if pk in runs]


def requests(runs: list[Run]) -> list[Request]:
    """The runs as requests for `placement.plan`."""
    held, files = _holders(runs), Files.now()
    begins = {run.pk: _holder(run, held.get(run.pk), files) for run in runs}
    return [
        Request(
            run=run.pk,
            devices=run.devices,
            kind=kind_of(run),
            exclusive=run.exclusive,
            study=_series_of(run),
            prefer=held[run.pk].worker if run.pk in held else prefer,
            hosts=run.host_count,
            alone=bool(why_alone(run, files, begins[run.pk])),
            over=files.reach(run.spec, resumes=run.resume_run_id is not None),
            unit=run.spec.get("parallel", {}).get("tp") or 1,
            needs=files.needed(run.spec, begins[run.pk]),
            among=tuple(run.between),
            task=task_of(run.task),
            memory=run.needs_memory or 0,
            fields=needs_later(run.spec),
            on=run.chosen_devices,
        )
        for run, prefer in zip(runs, _preferences(runs), strict=True)
    ]


def _holders(runs: list[Run]) -> dict[int, Holder]:
    """run -> who wrote its own newest checkpoint, in an earlier attempt."""
    rows = Checkpoint.objects.filter(run__in=[run.pk for run in runs]).order_by("step")
    return {run: Holder.of(*by) for run, *by in rows.values_list("run", "worker", "attempt__devices")}


def _holder(run: Run, own: Holder | None, files: Files) -> Holder | None:
    """Who wrote the checkpoint that the run needs to start; None if it needs none, or that no longer exists. `own` =
    holder of its own checkpoints."""
    if run.resume_run_id is None:
        return None
    if own is not None or run.resume_step is None:
        return own
    return files.holder({"run": run.resume_run_id, "step": run.resume_step})


def _series_of(run: Run) -> int | None:
    return run.study_id if run.exclusive else None


def _preferences(runs: list[Run]) -> list[str]:
    """For each run of a timed study, the worker of the study's newest attempt; '' for other runs."""
    studies = {_series_of(run) for run in runs} - {None}
    newest = Attempt.objects.filter(run__study__in=studies).order_by("pk").values_list("run__study", "worker__name")
    where = dict(newest) if studies else {}
    return [where.get(_series_of(run) or 0) or "" for run in runs]


def studies_active() -> dict[int, tuple[str, ...]]:
    """The studies with an exclusive run that is not over: id -> the hosts of that run."""
    active = Attempt.objects.filter(over=False, run__exclusive=True, run__study__isnull=False)
    rows = active.values_list("run__study", "devices")
    return {study: tuple(node["worker"] for node in nodes) for study, nodes in rows}


def waiting(run: Run) -> Waiting:
    """What a queued run waits for and how many are ahead of it."""
    return everyone_waiting(up_to=run.pk).get(run.pk, Waiting()) if run.state == State.QUEUED else Waiting()


def everyone_waiting(up_to: int | None = None) -> dict[int, Waiting]:
    """run id -> what it waits for, for all queued runs in queue order, from one reading of queue and fleet.

    With `up_to`, only for that run and those before it: later runs do not delay it.

    Only the first PLANNED runs are planned; the others wait for their turn.
    """
    order = queue_order()
    if up_to in order:
        order = order[: order.index(up_to) + 1]
    if order and (said := _for_controller()):
        return {pk: Waiting(said, ahead) for ahead, pk in enumerate(order)}
    out = {pk: Waiting(f"Waits for its turn: {ahead} runs ahead.", ahead) for ahead, pk in enumerate(order)}
    return out | _planned(queued_runs(order[:PLANNED]))


def _for_controller() -> str:
    """What all queued runs wait for while no controller is at work; '' while one is."""
    if refused_sentence(False):
        return "Waits for the controller, which is not at work: the broker is that of another yard."
    seconds = away_for()
    return "" if seconds is None else f"Waits for the controller, which has not been heard for {span(seconds)}."


def _planned(runs: list[Run]) -> dict[int, Waiting]:
    fleet, active, asked = hosts(), studies_active(), requests(runs)
    outcome, snapshot = plan(asked, fleet, active), FleetSnapshot.now()
    by_name = {host.name: host for host in fleet}
    out = {}
    for ahead, (run, request) in enumerate(zip(runs, asked, strict=True)):
        why, names = outcome.waits.get(run.pk, (None, ()))
        more = f" {ahead} {'run' if ahead == 1 else 'runs'} ahead." if ahead else ""
        awaited = [by_name[name] for name in names if name in by_name]
        full = tuple(host.name for host in awaited) if why in FULL else ()
        if why is Wait.SIBLING:
            full = active.get(run.study_id or 0, ())
        if why is Wait.CHOICE:
            sentence = waits_for_choice(request, snapshot)
        elif why is Wait.TOO_LARGE and request.on:
            sentence = too_few_text(request, snapshot)
        elif why in (Wait.CHECKPOINT, Wait.AWAY):
            sentence = _for_absent(run, why, names, awaited)
        elif why is Wait.UNABLE:
            sentence = unable_sentence(names, request, snapshot)
        elif why is Wait.VERSIONS:
            sentence = versions_sentence(names, request, snapshot)
        elif why is Wait.MEMORY:
            sentence = _too_small(request, awaited, fleet)
        else:
            sentence = _sentence(run, why, awaited, fleet, replace(request, memory=0))
        out[run.pk] = Waiting(sentence + more, ahead, full)
    return out


def _for_absent(run: Run, why: Wait, names: Sequence[str], awaited: Sequence[Host]) -> str:
    """The sentence for a run that needs the workers `names`, of which `awaited` are still in the fleet."""
    listed, removed = listed_text(names), len(awaited) < len(names)
    if why is Wait.AWAY:
        state = "removed, silent or draining" if removed else "silent or draining"
        if any(not host.across for host in awaited):
            state = f"{state}, or set to take no part in runs over several hosts"
        return f"Waits for {listed}, {state}: it times messages between {listed_text(run.between)}."
    what = "the checkpoint it begins from" if run.resume_run_id else _file_of(run)
    if len(names) > 1:
        return f"Waits for {listed}, one of which must be there for {what}."
    return f"Waits for worker {listed}, which has {what}; it {'was removed' if removed else 'is away or draining'}."


def _file_of(run: Run) -> str:
    return "the weights it begins from" if run.spec.get("train", {}).get("weights") else f"its {file_word(run.spec)}"


def _sentence(run: Run, why: Wait | None, awaited: list[Host], fleet: list[Host], asks: Request) -> str:
    """`asks`: its request for devices of any size."""
    kind = kind_of(run)
    word = run.chosen_devices.device_type or word_of(asks)
    if why is Wait.NO_HOST:
        held = "every worker is draining, leaving or silent" if fleet else "none is connected"
        return f"Waits for a worker: {held}."
    if why is Wait.TOO_LARGE:
        have = [host for host in fleet if host.count(kind)]
        return f"Needs {run.devices} {word}{_too_large(run, kind, [h for h in have if h.open])}{_away(have)}"
    if why is Wait.SIBLING:
        return "Waits for other runs of its study: they go one after another."
    if not awaited:
        return "Starts now."
    names = listed_text([host.name for host in awaited])
    if why is Wait.WHOLE_HOST and not asks.exclusive:
        return f"Waits for {run.devices} {word}: a timed run has {names} to itself."
    if why is Wait.WHOLE_HOST:
        return f"Waits for {run.devices} {word}: {names} must be idle, as timed runs share a host with nothing."
    if why is Wait.RESERVED:
        return f"Waits for {run.devices} {word} on {names}, which a run ahead is waiting for."
    free = sum(len(host.spare(asks)) for host in awaited)
    if asks.on.worker:
        total = plural_text(len(awaited[0].having(asks)), "device")
        return f"Waits for {run.devices} {word} of {asks.on.text}, chosen for it, which has {free} of {total} free."
    if len(awaited) == 1:
        return f"Waits for {run.devices} {word} on one host: {names} has {free} free."
    return f"Waits for {run.devices} {word} on {len(awaited)} hosts: {names} have {free} free."


def _too_small(request: Request, awaited: list[Host], fleet: list[Host]) -> str:
    """The sentence for a run that needs more memory than the devices of the open hosts `awaited` have."""
    away = _away([host for host in fleet if host.having(request)])
    return f"{too_small_text(awaited, request)}.{away or f' {FITS_NOWHERE}'}"


def _away(fleet: list[Host]) -> str:
    """A sentence with those of the workers that take no run now; '' if there are none."""
    names = [host.name for host in fleet if not host.open]
    return f" {listed_text(names)} {'is' if len(names) == 1 else 'are'} draining, leaving or silent." if names else ""


def _too_large(run: Run, kind: str, have: list[Host]) -> str:
    """The end of the sentence for a run that needs more devices than the open hosts `have` for one run."""
    files = Files.now()
    holder = _holder(run, _holders([run]).get(run.pk), files)
    if run.host_count < 2 and (why := why_alone(run, files, holder)):
        needed = files.needed(run.spec, holder)
        largest = max((host.count(kind) for host in have if not needed or host.name in needed), default=0)
        return f" on one host, because {why}; the largest worker has {largest}."
    counts = [host.count(kind) for host in have if host.across]
    apart = apart_text([host.name for host in have if not host.across])
    if run.host_count > 1:
        each = ", ".join(map(str, counts)) or "none"
        return f" spread evenly over {run.host_count} hosts; the workers have {each}.{apart}"
    if apart and len(have) > 1:
        return f"; a run over several hosts can have {sum(counts)}.{apart}"
    return f"; all workers together have {sum(host.count(kind) for host in have)}."
