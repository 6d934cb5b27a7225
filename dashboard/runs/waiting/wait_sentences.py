"""The sentence on what one queued run waits for, by the reason for which the placement passed it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.words import apart_text
from dashboard.placement.finding import Wait
from dashboard.placement.hosts import NOBODY, Host, Request
from dashboard.runs.models import Run
from dashboard.runs.run_files import file_word
from dashboard.runs.waiting.asking import Beginnings
from dashboard.runs.waiting.run_on import state_text, too_few_text, waits_for_choice
from dashboard.runs.waiting.spreading import FITS_NOWHERE, too_small_text, unable_sentence, versions_sentence, word_of
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text

MOST_NAMED = 3
"""How many workers a sentence names with what keeps each from taking runs."""


@dataclass(frozen=True)
class Fleet:
    """The fleet as one plan leaves it, and its workers."""

    hosts: list[Host]
    snapshot: FleetSnapshot

    def named(self, names: Sequence[str]) -> list[Host]:
        """The hosts of these names that are still in the fleet, in that order."""
        by_name = {host.name: host for host in self.hosts}
        return [by_name[name] for name in names if name in by_name]


def why_sentence(
    run: Run, request: Request, why: Wait | None, names: Sequence[str], fleet: Fleet, beginnings: Beginnings
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


def _for_file(missing: str, request: Request, fleet: Fleet) -> str:
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
    the awaited ones. Only of hosts that the run could have beside these (`placement.finding`)."""

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


def _too_small(request: Request, awaited: list[Host], fleet: Fleet) -> str:
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


def _too_large(run: Run, request: Request, fleet: Fleet, beginnings: Beginnings) -> str:
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
