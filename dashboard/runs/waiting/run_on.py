"""The devices that were chosen for a run: what there is to choose, why a choice can never be, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

from dashboard.ages import ago
from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import MAX_RUN_ON, RunOn
from dashboard.fleet.selectors import FleetSnapshot, age_of, devices_of, idle_host, types_of
from dashboard.fleet.shared_cores import devices_and_cores
from dashboard.fleet.words import WORDS
from dashboard.placement.hosts import Request
from dashboard.runs.waiting.spreading import SILENT, state_of, word_of
from parallel_core.analysis.quantities import listed_text, plural_text

FIELD = "run_on"
ANY = "any device"
NEAREST = 4
"""The most choices that a message names."""
Choices = list[tuple[str, str | list[tuple[str, str]]]]


def read(written: str) -> tuple[RunOn, str]:
    """Returns the choice of a text, and why it is none ('' if it is one)."""
    if len(written) > MAX_RUN_ON or "\x00" in written:
        return RunOn(), f"A choice has at most {MAX_RUN_ON} characters, none of them a null character."
    try:
        return RunOn.read(written), ""
    except ValueError as error:
        return RunOn(), str(error)


def choices(fleet: FleetSnapshot, own: str = "") -> Choices:
    """What a form offers: any device, each type of device, each worker; and `own`, also if the fleet has none such."""
    types = [(str(RunOn(device_type=name)), _type_label(name, fleet)) for name in _types(fleet)]
    workers = [(str(RunOn(worker=one.name)), _worker_label(one, fleet)) for one in fleet.whole.every]
    known = {key for key, _ in (*types, *workers)}
    missing: Choices = [(own, f"{RunOn.stored(own).text}: not in the fleet")] if own and own not in known else []
    groups = [("Device type", types), ("Worker", workers)]
    return [("", ANY), *((title, group) for title, group in groups if group), *missing]


def _types(fleet: FleetSnapshot) -> list[str]:
    return sorted(set().union(*(types_of(one) for one in fleet.whole.every)) - {""})


def _type_label(name: str, fleet: FleetSnapshot) -> str:
    having = fleet.narrowed(RunOn(device_type=name)).every
    devices = sum(len(one.devices) for one in having)
    return f"{name}: {plural_text(devices, 'device')} of {plural_text(len(having), 'worker')}"


def _worker_label(worker: Worker, fleet: FleetSnapshot) -> str:
    counts = [plural_text(len(ids), WORDS.get(kind, kind)) for kind, ids in devices_of(worker).items()]
    state, (_, cores) = state_of(worker, fleet.whole), devices_and_cores(worker)
    on = f" on {plural_text(cores, 'core')}" if cores else ""
    return ", ".join([f"{worker.name}: {listed_text(counts) or 'no device'}{on}", *([state] if state else [])])


def unknown(fleet: FleetSnapshot) -> str:
    """Why the fleet has none of the devices for which it is narrowed, as a sentence; '' if it has some, or is whole."""
    on = fleet.on
    if not on or fleet.every:
        return ""
    names = [worker.name for worker in fleet.whole.every] if on.worker else _types(fleet)
    near = get_close_matches(on.worker or on.device_type, names, NEAREST, 0.0)
    what = f"has no worker “{on.worker}”" if on.worker else f"has no device of the type “{on.device_type}”"
    return f"This fleet {what}; {f'the nearest are {listed_text(near)}' if near else 'no worker has reported'}."


def refusal(asks: Request, fleet: FleetSnapshot) -> str:
    """Why a run with this request could never be placed on the devices for which the fleet is narrowed, whatever
    reports now; '' if it could, or if the fleet is whole."""
    if not fleet.on:
        return ""
    if why := unknown(fleet):
        return why
    having = [worker for worker in fleet.every if not asks.needs or worker.name in asks.needs]
    if not having:
        return f"What the run reads is not there; it is on {listed_text(asks.needs)}."
    most = _most(asks, having)
    if asks.devices <= most:
        return ""
    said = _number_text(fleet.on, most, asks.kind)
    needed = f"{asks.devices} {'is' if asks.devices == 1 else 'are'} needed"
    return f"{said[0].upper()}{said[1:]}; {needed}.{_enough(asks, fleet)}"


def _number_text(on: RunOn, most: int, kind: str) -> str:
    count = plural_text(most, WORDS.get(kind, kind)) if most else f"no {WORDS.get(kind, kind)}"
    return f"{on.have} {count}" if on.worker else f"{on.have} {count} for one run"


def _most(asks: Request, workers: Iterable[Worker]) -> int:
    """The most devices of its kind that one run could have of these workers if all of them reported."""
    hosts = [idle_host(worker) for worker in workers]
    across = [host for host in hosts if host.across and (not asks.over or host.name in asks.over)]
    counts = [host.count(asks.kind) for host in hosts]
    together = 0 if asks.alone else sum(host.count(asks.kind) for host in across)
    return max([together, *counts])


def _enough(asks: Request, fleet: FleetSnapshot) -> str:
    """A sentence that names choices with enough devices, the most similar ones first; '' if there are none."""
    free = replace(asks, alone=asks.alone and not fleet.on.worker)
    found = [on.text for on in _every(fleet) if _would_do(free, fleet.narrowed(on))]
    near = get_close_matches(fleet.on.text, found, NEAREST, 0.0)
    return f" Enough: {listed_text(near)}." if near else ""


def _every(fleet: FleetSnapshot) -> Iterator[RunOn]:
    yield from (RunOn(worker=worker.name) for worker in fleet.whole.every)
    yield from (RunOn(device_type=name) for name in _types(fleet))


def _would_do(asks: Request, fleet: FleetSnapshot) -> bool:
    having = [worker for worker in fleet.every if not asks.needs or worker.name in asks.needs]
    return bool(having) and asks.devices <= _most(replace(asks, alone=asks.alone or bool(fleet.on.worker)), having)


def waits_for_choice(asks: Request, fleet: FleetSnapshot) -> str:
    """What a queued run waits for, of whose chosen devices none is on an open host that has what it reads."""
    chosen = fleet.narrowed(asks.on)
    if why := unknown(chosen):
        return f"It was to run on {asks.on.text}. {why} Choose where it runs, or cancel it."
    having = [worker for worker in chosen.every if not asks.needs or worker.name in asks.needs]
    if not having:
        reads = listed_text(asks.needs)
        return f"It was to run on {asks.on.text}, but what it reads is on {reads}. Choose where it runs."
    states = [(worker.name, state_text(worker, fleet.whole)) for worker in having]
    if asks.on.worker:
        return f"Waits for {asks.on.text}, chosen for it, which is {states[0][1]}."
    return f"Waits for {asks.on.text}, chosen for it: {listed_text([f'{name} is {state}' for name, state in states])}."


def state_text(worker: Worker, fleet: FleetSnapshot) -> str:
    """Why the worker takes no run; of a silent one also when it was heard."""
    state, age = state_of(worker, fleet), age_of(worker)
    return f"{state} (heard {ago(age)})" if state == SILENT and age is not None else state or "about to report"


def too_few_text(asks: Request, fleet: FleetSnapshot) -> str:
    """That the chosen devices of the workers that take runs are too few for a queued run."""
    chosen = fleet.narrowed(asks.on)
    usable = [worker for worker in chosen.every if not asks.needs or worker.name in asks.needs]
    takes = [worker for worker in usable if not state_of(worker, fleet.whole)]
    have = _number_text(asks.on, _most(asks, takes) if takes else 0, asks.kind)
    away = [f"{worker.name} is {state}" for worker in usable if (state := state_of(worker, fleet.whole))]
    end = f" {listed_text(away)}." if away else " Choose where it runs."
    return f"Needs {asks.devices} {word_of(asks)}; {have}, chosen for it.{end}"
