"""What queued runs wait for: all of them from one reading of queue and fleet. `wait_sentences` has the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils import timezone

from dashboard.ages import clock, span
from dashboard.fleet.listening import away_for, deaf, disk_is_full, is_reading, refused_sentence
from dashboard.fleet.selectors import FleetSnapshot, hosts
from dashboard.placement.assignments import plan
from dashboard.placement.finding import UNTAKEN, Wait
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.waiting import resting
from dashboard.runs.waiting.asking import Beginnings, queued_runs, requests
from dashboard.runs.waiting.turns import queue_order
from dashboard.runs.waiting.wait_sentences import Fleet, why_sentence
from parallel_core.analysis.quantities import plural_text

PLANNED = 200
"""How many runs at the front of the queue are planned: a plan of thousands would delay every page that asks."""
CLOSELY = 20
"""How many runs behind those a page may look at more closely."""
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
    fleet = Fleet([host.unreserved() for host in outcome.left.values()], FleetSnapshot.now())
    out = {}
    for ahead, run, request in zip(places, runs, asked, strict=False):
        why, names = outcome.waits.get(run.pk, (None, ()))
        if whys and why not in whys:
            continue
        more = f" {plural_text(ahead, 'run')} ahead." if ahead and why is not None else ""
        full = tuple(host.name for host in fleet.named(names)) if why in FULL else ()
        if why is Wait.SIBLING:
            full = active.get(run.study_id or 0, ())
        out[run.pk] = Waiting(why_sentence(run, request, why, names, fleet, beginnings) + more, ahead, full)
    return out
