"""What queued runs wait for, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.utils import timezone

from dashboard.ages import clock, span
from dashboard.control.finding import UNTAKEN, Wait
from dashboard.control.hosts import NOBODY, Host, Request
from dashboard.control.placement import plan
from dashboard.fleet.listening import away_for, deaf, disk_is_full, is_reading, refused_sentence
from dashboard.fleet.selectors import FleetSnapshot, hosts
from dashboard.fleet.words import apart_text
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.run_files import file_word
from dashboard.runs.waiting import resting
from dashboard.runs.waiting.asking import Beginnings, queued_runs, requests
from dashboard.runs.waiting.run_on import state_text, too_few_text, waits_for_choice
from dashboard.runs.waiting.spreading import FITS_NOWHERE, too_small_text, unable_sentence, versions_sentence, word_of
from dashboard.runs.waiting.turns import queue_order
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text

PLANNED = 200
"""How many runs at the front of the queue are planned: a plan of thousands would delay every page that asks."""
CLOSELY = 20
"""How many runs behind those a page may look at more closely."""
MOST_NAMED = 3
"""How many workers a sentence names with what keeps each from taking runs."""
FULL = (Wait.BUSY, Wait.WHOLE_HOST, Wait.RESERVED)
"""Reasons to wait that can end when another run ends."""


@dataclass(frozen=True)
class Waiting:
    """What a run waits for. `sentence` is '' for a run that is not queued; `ahead` = queued runs served before it;
    `hosts` = those whose devices it waits for."""

    sentence: str = ""
    ahead: int = 0
    hosts: tuple[str, ...] = ()


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

    Only the first PLANNED runs are planned; the others wait for their turn (`told_closely` says more), but for `up_to`
    if no end of another run would let it start.
    """
    order = queue_order()
    if up_to in order:
        order = order[: order.index(up_to) + 1]
    if order and (said := _for_controller()):
        return {pk: Waiting(said, ahead) for ahead, pk in enumerate(order)}
    out = {pk: Waiting(_turn(ahead), ahead) for ahead, pk in enumerate(order)}
    if up_to in order[PLANNED:]:
        return told_closely(out, order[-1:])
    ahead, rests = {pk: place for place, pk in enumerate(order[:PLANNED])}, _resting()
    out |= {pk: Waiting(said, ahead[pk]) for pk, said in rests.items() if pk in ahead}
    awake = queued_runs([pk for pk in ahead if pk not in rests])
    return out | _planned(awake, [ahead[run.id] for run in awake])


def _resting() -> dict[int, str]:
    """What runs wait for that rest: the placement passes them over meanwhile."""
    now = timezone.now()
    why = {
        resting.KILLED: "a process of it was killed",
        resting.WORKER_LOST: "the network between its hosts was interrupted",
    }
    found = resting.rests(now).items()
    return {pk: f"Starts at {clock(rest.until, now)} UTC at the earliest, as {why[rest.cause]}." for pk, rest in found}


def told_closely(waits: dict[int, Waiting], runs: Iterable[int]) -> dict[int, Waiting]:
    """What `everyone_waiting` said, where of these runs that it did not plan the first CLOSELY say what they wait for
    if no end of another run would let them start."""
    ahead = {pk: waits[pk].ahead for pk in runs if pk in waits and waits[pk].sentence == _turn(waits[pk].ahead)}
    listed = queued_runs(sorted(ahead, key=ahead.__getitem__)[:CLOSELY])
    return waits | _planned(listed, [ahead[run.pk] for run in listed], UNTAKEN)


def _turn(ahead: int) -> str:
    return f"Waits for its turn: {ahead} runs ahead."


def _for_controller() -> str:
    """What all queued runs wait for while no controller is at work; '' while one is."""
    if refused_sentence(False):
        return "Waits for the controller, which is not at work: the broker is that of another yard."
    seconds = away_for()
    if seconds is None:
        return ""
    if disk_is_full():
        return "Waits until the disk of the database, which is full, has room."
    if is_reading():
        return f"Waits until the controller has read what workers sent in the last {span(seconds)}."
    if error := deaf():
        return f"Waits for Redis, which has failed the controller for {span(seconds)} ({error})."
    return f"Waits for the controller, which has not been heard for {span(seconds)}."


def _planned(runs: list[Run], places: Sequence[int], whys: Sequence[Wait] = ()) -> dict[int, Waiting]:
    """What the runs wait for, each with so many others ahead as `places` says; with `whys` only those that wait for one
    of these reasons."""
    if not runs:
        return {}
    active, beginnings = studies_active(), Beginnings(runs)
    asked = requests(runs, beginnings)
    outcome = plan(asked, hosts(), active)
    fleet = _Fleet([host.unreserved() for host in outcome.left.values()], FleetSnapshot.now())
    out = {}
    for ahead, run, request in zip(places, runs, asked, strict=False):
        why, names = outcome.waits.get(run.pk, (None, ()))
        if whys and why not in whys:
            continue
        more = f" {plural_text(ahead, 'run')} ahead." if ahead and why is not None else ""
        full = tuple(host.name for host in fleet.named(names)) if why in FULL else ()
        if why is Wait.SIBLING:
            full = active.get(run.study_id or 0, ())
        out[run.pk] = Waiting(_why(run, request, why, names, fleet, beginnings) + more, ahead, full)
    return out


@dataclass(frozen=True)
class _Fleet:
    """The fleet as one plan leaves it, and its workers."""

    hosts: list[Host]
    snapshot: FleetSnapshot

    def named(self, names: Sequence[str]) -> list[Host]:
        """The hosts of these names that are still in the fleet, in that order."""
        by_name = {host.name: host for host in self.hosts}
        return [by_name[name] for name in names if name in by_name]


def _why(
    run: Run, request: Request, why: Wait | None, names: Sequence[str], fleet: _Fleet, beginnings: Beginnings
) -> str:
    """What the run waits for, as a sentence; `names`: of the hosts that the plan says it waits for."""
    awaited = fleet.named(names)
    if why in (Wait.CHOICE, Wait.CHECKPOINT) and request.needs == NOBODY:
        return _for_file(beginnings.missing(run), request, fleet)
    if why is Wait.NO_HOST:
        return _for_any_worker(fleet.snapshot)
    if why is Wait.CHOICE:
        return waits_for_choice(request, fleet.snapshot)
    if why is Wait.TOO_LARGE and request.on:
        return too_few_text(request, fleet.snapshot)
    if why is Wait.TOO_LARGE:
        return _too_large(run, request, fleet, beginnings)
    if why in (Wait.CHECKPOINT, Wait.AWAY):
        return _for_absent(run, why, names, awaited)
    if why is Wait.UNABLE:
        return unable_sentence(names, request, fleet.snapshot)
    if why is Wait.VERSIONS:
        return versions_sentence(names, request, fleet.snapshot)
    if why is Wait.MEMORY:
        return _too_small(request, awaited, fleet)
    return _sentence(run, why, awaited, fleet.hosts, request)


def _for_any_worker(fleet: FleetSnapshot) -> str:
    """The sentence for a run that any worker could take, while none takes runs: names a few of them, each with why."""
    if not fleet.every:
        return "Waits for a worker: none is connected."
    if len(fleet.every) > MOST_NAMED:
        return f"Waits for a worker: each of the {len(fleet.every)} is draining, leaving or silent."
    states = [f"{worker.name} is {state_text(worker, fleet)}" for worker in fleet.every]
    return f"Waits for a worker: {listed_text(states)}."


def _for_file(missing: str, request: Request, fleet: _Fleet) -> str:
    """The sentence for a run that reads what no worker has, or what workers that know no such thing cannot list."""
    there = [host for host in fleet.hosts if host.open and host.count(request.kind)]
    if there and not any(host.knows(request) for host in there):
        return unable_sentence([host.name for host in there], replace(request, needs=()), fleet.snapshot)
    return f"Waits for a worker that has {missing}: none has. Put that into a worker's data folder, or cancel the run."


def _for_absent(run: Run, why: Wait | None, names: Sequence[str], awaited: Sequence[Host]) -> str:
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
    word = run.chosen_devices.device_type or word_of(asks)
    if why is Wait.SIBLING:
        return "Waits for other runs of its study: they go one after another."
    if not awaited:
        return "Starts now."
    names = listed_text([host.name for host in awaited])
    if why is Wait.WHOLE_HOST and not asks.exclusive:
        return f"Waits for {run.devices} {word}: a timed run has {names} to itself."
    if why is Wait.WHOLE_HOST:
        alone = f"timed runs share a host with nothing{_as_siblings_need(asks, fleet)}"
        return f"Waits for {run.devices} {word}: {names} must be idle, as {alone}."
    if why is Wait.RESERVED:
        return f"Waits for {run.devices} {word} on {names}, which a run ahead is waiting for."
    free = sum(len(host.spare(asks)) for host in awaited)
    word += _if_some_are_smaller(asks, awaited)
    if asks.on.worker:
        total = plural_text(len(awaited[0].having(asks)), "device")
        return f"Waits for {run.devices} {word} of {asks.on.text}, chosen for it, which has {free} of {total} free."
    if len(awaited) == 1:
        return f"Waits for {run.devices} {word} on one host: {names} has {free} free."
    others = _free_elsewhere(asks, awaited, fleet)
    return f"Waits for {run.devices} {word} on {len(awaited)} hosts: {names} have {free} free{others}."


def _free_elsewhere(asks: Request, awaited: list[Host], fleet: Sequence[Host]) -> str:
    """`; yard-c has 1`: free devices of other hosts, which the fleet's page shows: too few with those that are free on
    the awaited ones. Only of hosts that the run could have beside these (`control.finding`)."""

    def sort(host: Host) -> tuple[str, str | None]:
        return host.version, asks.on.device_type or host.types.get(asks.kind)

    alike, reached = set(map(sort, awaited)), asks.over or [host.name for host in fleet]
    able = [host for host in fleet if host.gives and host.knows(asks) and host.chosen(asks) and host not in awaited]
    able = [host for host in able if host.across and host.name in reached and sort(host) in alike]
    free = {host.name: len(host.spare(asks)) for host in able if host.spare(asks)}
    if not free:
        return ""
    return f"; {listed_text(list(free))} {'has' if len(free) == 1 else 'have'} {sum(free.values())}"


def _as_siblings_need(asks: Request, fleet: Sequence[Host]) -> str:
    """`, and its study has a run for 4`: why the run does not go to a smaller host, if there is one."""
    smaller = any(host.open and asks.devices <= len(host.having(asks)) < asks.widest for host in fleet)
    return f", and its study has a run for {asks.widest}" if smaller else ""


def _if_some_are_smaller(asks: Request, awaited: list[Host]) -> str:
    """` of 40 GiB`: the memory that the run needs, if these hosts also have devices with less, which may be free."""
    any_size = replace(asks, memory=0)
    smaller = any(len(host.having(any_size)) > len(host.having(asks)) for host in awaited)
    return f" of {bytes_text(asks.memory)}" if smaller else ""


def _too_small(request: Request, awaited: list[Host], fleet: _Fleet) -> str:
    """The sentence for a run that needs more memory than the devices of the open hosts `awaited` have."""
    away = _away([host for host in fleet.hosts if host.having(request)], fleet.snapshot)
    return f"{too_small_text(awaited, request)}.{away or f' {FITS_NOWHERE}'}"


def _away(hosts: list[Host], fleet: FleetSnapshot) -> str:
    """A sentence with those of the hosts that take no run now, a few of them each with why; '' if there are none."""
    names = [host.name for host in hosts if not host.open]
    if len(names) > MOST_NAMED:
        return f" {listed_text(names)} are draining, leaving or silent."
    states = [f"{one.name} is {state_text(one, fleet)}" for one in fleet.every if one.name in names]
    return f" {listed_text(states)}." if states else ""


def _too_large(run: Run, request: Request, fleet: _Fleet, beginnings: Beginnings) -> str:
    """The sentence for a run that needs more devices than the open hosts have for one run."""
    with_some = [host for host in fleet.hosts if host.count(request.kind)]
    have = [host for host in with_some if host.open]
    word = run.chosen_devices.device_type or word_of(request)
    away = _away(with_some, fleet.snapshot)
    return f"Needs {run.devices} {word}{_what_there_is(run, request, have, beginnings)}{away}"


def _what_there_is(run: Run, request: Request, have: list[Host], beginnings: Beginnings) -> str:
    """The end of the sentence for a run that needs more devices than the open hosts `have` for one run."""
    kind, needed = request.kind, request.needs
    if run.host_count < 2 and (why := beginnings.why_alone(run)):
        largest = max((host.count(kind) for host in have if not needed or host.name in needed), default=0)
        return f" on one host, because {why}; the largest worker has {largest}."
    counts = [host.count(kind) for host in have if host.across]
    apart = apart_text([host.name for host in have if not host.across])
    if run.host_count > 1:
        who = "the only worker for it has" if len(counts) == 1 else "the workers have"
        return f" spread evenly over {run.host_count} hosts; {who} {', '.join(map(str, counts)) or 'none'}.{apart}"
    if apart and len(have) > 1:
        return f"; a run over several hosts can have {sum(counts)}.{apart}"
    return f"; all workers together have {sum(host.count(kind) for host in have)}."
