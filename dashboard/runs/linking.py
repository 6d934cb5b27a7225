"""Runs that time messages between two hosts: submits them, and puts their results into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import reporting
from dashboard.fleet.words import unable_text
from dashboard.ledger import models
from dashboard.ledger.host_links import pair_of, pairs_of
from dashboard.runs import services
from dashboard.runs.models import ENDED, Run, State
from parallel_core.analysis.quantities import bytes_text, listed_text, seconds_text
from parallel_core.profile.curves import Link, LinksBetween
from parallel_core.profile.request import spec_between
from parallel_core.spec import DeviceKind

MOST_EACH = 8
"""The most ranks on each of the two hosts: groups of 2, 4, 8 and 16 are timed."""
KINDS: tuple[DeviceKind, ...] = ("cuda", "cpu")
NAMES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "send": "send"}


@dataclass(frozen=True)
class Row:
    """One kind of message among a number of ranks: latency and rate of its fitted line, times of the smallest and
    largest size."""

    what: str
    among: str
    alpha: str
    rate: str
    small: str
    large: str


def submit(*, owner: Any, first: str, second: str, also: services.Also = services.nothing_else) -> Run:
    """Queues a run that times messages between two workers while nothing else runs there; `also` gets it.

    If such a run of the pair has not ended yet, returns that one. Raises services.Invalid (`first`, `second`),
    PermissionDenied for viewers.
    """
    pair = pair_of(first, second)
    workers = {worker.name: worker for worker in reporting() if worker.name in pair}
    reasons = {"first": _why_not(first, workers.get(first)), "second": _why_not(second, workers.get(second))}
    errors = {field: reason for field, reason in reasons.items() if reason}
    if not errors and first == second:
        errors["second"] = f"Links are timed between two hosts; {first} was chosen twice."
    if errors:
        raise services.Invalid(errors)
    kind, each = _share(*(workers[name] for name in pair))
    spec = spec_between(kind, each).model_dump(mode="json")
    name, task = f"Links between {listed_text(pair)}", {"links": list(pair)}
    asked: services.RunRequest = {"spec": spec, "name": name, "exclusive": True, "task": task, "host_count": 2}
    return _written(services.prepare(owner=owner, requests=[asked]), pair, also)


def _why_not(name: str, worker: Worker | None) -> str:
    """Why links of the worker of this name cannot be timed, with what to do; '' if they can."""
    if worker is None:
        return f"No worker {name!r} reports; choose one that does."
    if not worker.across_hosts:
        return f"{name} takes no part in runs over several hosts (TRAINYARD_ACROSS_HOSTS=0 there); choose another."
    if "links" not in worker.tasks:
        return f"{unable_text([(name, worker.version)], 'links')}; start it again with a newer one."
    return ""


@transaction.atomic
def _written(prepared: services.Prepared, pair: tuple[str, str], also: services.Also) -> Run:
    """The run that was prepared, unless one of the pair is under way: then that one."""
    # Of two requests at once the second waits here (SQLite: for the transaction) and then finds the run of the first.
    list(Worker.objects.select_for_update(no_key=True).filter(name__in=pair).order_by("pk").values_list("pk"))
    if under_way := _under_way(pair):
        also(under_way)
        return under_way
    return services.write_one(prepared, also)


def _under_way(pair: tuple[str, str]) -> Run | None:
    open_runs = Run.objects.exclude(state__in=ENDED).exclude(task={})
    return next((run for run in open_runs if run.between == list(pair)), None)


def _share(one: Worker, other: Worker) -> tuple[DeviceKind, int]:
    """Returns (the kind of device that both have, how many of each). Raises services.Invalid if there is none."""
    for kind in KINDS:
        each = min(sum(device["kind"] == kind for device in worker.devices) for worker in (one, other))
        if each:
            return kind, min(each, MOST_EACH)
    raise services.Invalid({"second": f"Workers {one.name} and {other.name} have no device of the same kind."})


def table_of(run: Run) -> LinksBetween | None:
    """The result of the run; None before there is one."""
    row = getattr(run, "links", None)
    return LinksBetween.model_validate(row.table) if row is not None else None


def sentence(run: Run) -> str:
    """What the run found about messages between the hosts, beginning with the numbers."""
    found = table_of(run)
    send = found.link("send", 2) if found else None
    if send is None:
        why = "it ended without a result" if run.state == State.SUCCEEDED else "it takes about half a minute"
        return f"Times messages between {listed_text(run.between)}: {why}."
    return f"{line_text(send)} between {listed_text(run.between)}, one tensor at a time."


def line_text(link: Link) -> str:
    """`0.21 ms and 940 MiB/s`: latency and rate of the fitted line; only the latency if larger messages took no
    longer."""
    return " and ".join(filter(None, _line(link)))


def _line(link: Link) -> tuple[str, str]:
    """Latency and rate; '' instead of a rate if larger messages took no longer."""
    alpha, beta = link.time.line
    return seconds_text(alpha), f"{bytes_text(1 / beta)}/s" if beta > 0 else ""


def listed(run: Run) -> list[Row]:
    """A row for every kind of message that the run timed."""
    found = table_of(run)
    return rows(found) if found else []


def rows(found: LinksBetween) -> list[Row]:
    """A row for every kind of message in the table."""
    return [_row(link) for link in found.links]


def _row(link: Link) -> Row:
    alpha, rate = _line(link)
    smallest, largest = seconds_text(link.time.seconds[0]), seconds_text(link.time.seconds[-1])
    return Row(NAMES[link.what], _among(link), alpha, rate or "–", smallest, largest)


def _among(link: Link) -> str:
    if link.hosts == 1:
        return "2 ranks of one host, as in a pipeline over both"
    if link.what == "send" and link.ranks > 2:
        return f"{link.ranks // 2} at once, from as many ranks of one host to as many of the other"
    return f"{link.ranks} ranks, {link.ranks // 2} on each host"


@dataclass(frozen=True)
class Known:
    """The newest measurement of a pair of hosts, in words."""

    row: models.LinksBetween
    send: str
    reduction: str

    @classmethod
    def of(cls, row: models.LinksBetween) -> Known:
        found = LinksBetween.model_validate(row.table)
        send, reduction = found.link("send", 2), found.link("all_reduce", 2)
        return cls(row, line_text(send) if send else "", line_text(reduction) if reduction else "")


def hosts(able: Sequence[str], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """(name, why messages to it cannot be timed now, in a few words) of the workers to choose a pair from: those that
    are `able`, of which there is nothing to say, and those that are `chosen` already."""
    others = [name for name in chosen if name not in able]
    there = {worker.name: worker for worker in Worker.objects.filter(name__in=others)} if others else {}
    heard = {worker.name for worker in reporting().filter(name__in=others)} if others else set()

    def why(name: str) -> str:
        if name in able:
            return ""
        if name not in there:
            return "not in the fleet"
        return "takes no part in runs over several hosts" if name in heard else "silent"

    return [(name, why(name)) for name in sorted({*able, *others})]


def next_pair(names: Sequence[str], known: Sequence[Known]) -> list[str]:
    """Two workers whose links nobody has measured, else the first two; fewer if there are fewer."""
    have = {(one.row.first, one.row.second) for one in known}
    return list(next((pair for pair in pairs_of(names) if pair not in have), tuple(names[:2])))
