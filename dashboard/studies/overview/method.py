"""How a study was measured, in words: hardware, links, versions, data, seed, steps and repeats, from its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from django.db.models import Q
from django.urls import reverse

from dashboard.fleet.models import Worker
from dashboard.fleet.words import model_name
from dashboard.ledger.models import Profile, ProfileState
from dashboard.runs import linking
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.page.ran_with import ran_with
from dashboard.runs.page.tabs import TABS as RUN_TABS
from dashboard.runs.texts import corpus_names
from dashboard.runs.tracing.traces import Trace
from dashboard.studies.overview import peaks
from dashboard.studies.overview.link_rates import Rate, rates
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.selectors import held_equal
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.host_drift import contention_text
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    flops_text,
    most_percent_text,
    percent_text,
    plural_text,
)
from parallel_core.profile.table import CostTable

NAMED = 8
"""The most devices of a host that are named one by one."""
Link = tuple[str, str]
"""(words, address on this yard)."""


class Line(NamedTuple):
    """One line of the method: the term, the text, and links to the pages that its numbers are from."""

    term: str
    text: str
    links: Sequence[Link] = ()


def of_overview(view: Overview, traced: Iterable[Trace]) -> list[Line]:
    """The lines in the order of a paper's method section; what is not known is said. `traced` = traced steps of these
    runs."""
    if not view.rows:
        return []
    newest = _newest(view)
    standing = view.baseline or view.rows[0]
    labels = {row.run.pk: row.entry.label for row in view.rows}
    spec = [_to(standing.run, labels, "spec")]
    return [
        Line("Hardware", *_hardware(newest, labels)),
        Line("Links", *_links(newest, list(traced), labels)),
        Line("Versions", *_versions(newest, labels)),
        Line("Model and data", _data(view), spec),
        Line("Seed", _shared([str(row.spec.train.seed) for row in view.rows]), spec),
        Line("Steps", _steps(view), _listed(standing.run)),
        Line("Repeats", _repeats(view), _listed(standing.run)),
        Line("Disturbance", *_disturbance(view, labels)),
        Line("Pace", _pace(view)),
    ]


def _to(run: Run, labels: Mapping[int, str], tab: str, step: int | None = None) -> Link:
    """A link to the tab of a run, and to the traced step, that a number is from; called as in the study's tables."""
    at = "" if step is None else f"&step={step}"
    where = RUN_TABS[tab] if step is None else f"{RUN_TABS[tab]} of step {step}"
    return (
        f"{where}, {labels.get(run.pk, run.label)} (run {run.pk})",
        f"{reverse('runs:page', args=[run.pk])}?tab={tab}{at}#details",
    )


def _listed(run: Run) -> list[Link]:
    return [("the list of its runs", f"{reverse('runs:list')}?study={run.study_id}")] if run.study_id else []


def _newest(view: Overview) -> list[Attempt]:
    """The attempts that measured: the newest of each run that was given devices."""
    found = Attempt.objects.filter(run__in=[row.run.pk for row in view.rows]).order_by("number").select_related("run")
    return list({attempt.run_id: attempt for attempt in found if attempt.devices}.values())


def _used(newest: Sequence[Attempt]) -> dict[str, set[tuple[str, int]]]:
    """worker -> (kind, index) of every device that a run used."""
    used: dict[str, set[tuple[str, int]]] = {}
    for attempt in newest:
        kind = str(attempt.run.spec.get("train", {}).get("device", "cpu"))
        for node in attempt.devices:
            used.setdefault(node["worker"], set()).update((kind, index) for index in node["devices"])
    return used


def _hardware(newest: Sequence[Attempt], labels: Mapping[int, str]) -> tuple[str, list[Link]]:
    used = _used(newest)
    hosts = Worker.objects.in_bulk(used, field_name="name")
    said = [_host(name, devices, hosts.get(name)) for name, devices in sorted(used.items())]
    if not said:
        return "No run has been given devices yet.", []
    found = ((peaks.of_device(one.run), one.run) for one in newest)
    best, run = max(((peak, run) for peak, run in found if peak), default=(0, None), key=itemgetter(0))
    hosts_said = f"{'; '.join(said)}."
    if run is None:
        return hosts_said, []
    return f"{hosts_said} A device reached {flops_text(best)} in large matrix products.", [_to(run, labels, "metrics")]


def _host(name: str, used: set[tuple[str, int]], host: Worker | None) -> str:
    if host is None:
        return f"{name}: {plural_text(len(used), 'device')}, host forgotten since"
    mine = [device for device in host.devices if (device["kind"], device["index"]) in used]
    names = Counter(model_name(str(device.get("name") or device["kind"]), ", a core") for device in mine)
    listed = ", ".join(f"{n} x {text}" if n > 1 else text for text, n in list(names.items())[:NAMED])
    sizes = {device.get("memory_total", 0) for device in mine} - {0}
    memory = f", {bytes_text(min(sizes))} of memory{' at least' if len(sizes) > 1 else ' each'}" if sizes else ""
    return f"{name}: {plural_text(len(used), 'device')} ({listed or 'not listed any more'}){memory}"


def _links(newest: Sequence[Attempt], traced: Sequence[Trace], labels: Mapping[int, str]) -> tuple[str, list[Link]]:
    """From the worker's profile if there is one; else the lower bounds from the traced steps."""
    profile = Profile.objects.filter(worker__name__in=_used(newest), state=ProfileState.DONE).first()
    table = CostTable.model_validate(profile.table) if profile else None
    if profile and table and table.links:
        said = "; ".join(
            f"{linking.NAMES[link.what]} of {link.ranks}: {linking.line_text(link)}" for link in table.links
        )
        address = f"{reverse('ledger:partition')}?profile={profile.pk}"
        return f"Profiled on {profile.worker.name}: {said}.", [("the profile", address)]
    best = rates((trace.spans, trace.layout) for trace in traced)
    if not best:
        return "Not measured: no traced step sent anything, and the host was not profiled.", []
    said = ", ".join(_best(among, rate) for among, rate in best.items())
    text = (
        f"At least {said}. From the traced steps: a message counts from the start of its send to its arrival, a "
        f"collective from the last rank that came. Latency is in it. The host itself was not profiled."
    )
    fastest = dict.fromkeys(rate.step for rate in best.values())
    return text, [_to(traced[i].run, labels, "timeline", traced[i].step) for i in fastest]


def _best(among: str, rate: Rate) -> str:
    return f"{bytes_text(rate.per_s)}/s between {among} (best of {count_text(rate.messages)}, {bytes_text(rate.size)})"


def _versions(newest: Sequence[Attempt], labels: Mapping[int, str]) -> tuple[str, list[Link]]:
    said = ran_with(newest)
    if not said:
        return "Not reported by the ranks.", []
    return said, [_to(attempt.run, labels, "ranks") for attempt in newest[:1]]


def _data(view: Overview) -> str:
    read = [row.spec.train.corpus for row in view.rows]
    names = corpus_names.names_of(read)
    corpora = _shared([names[corpus] for corpus in read])
    devices = max((row.run.devices for row in view.rows), default=0)
    return f"{held_equal([row.spec for row in view.rows], devices)}; corpus {corpora}"


def _shared(values: Sequence[str]) -> str:
    unique = list(dict.fromkeys(values))
    said = unique[0] if len(unique) == 1 else f"{', '.join(unique)}, not the same in all runs" if unique else "none"
    return f"{said}."


def _steps(view: Overview) -> str:
    steps = " or ".join(dict.fromkeys(str(row.spec.train.steps) for row in view.rows))
    return f"{steps} a run; {view.source}. Step times are medians, whiskers the 10th and 90th percentile."


def _repeats(view: Overview) -> str:
    done = [row for row in view.rows if row.entry.done]
    if not done:
        return "No run has a result yet."
    settings = {row.spec.model_dump_json() for row in view.rows}
    counts = Counter(row.spec.model_dump_json() for row in done)
    most, least = max(counts.values()), min(counts.values())
    how = f"{least} to {most} times" if least != most else "once" if most == 1 else f"{most} times"
    which = "Each setting"
    if len(counts) < len(settings):
        which += f" with a result ({len(counts)} of {len(settings)})"
    alone = sum(row.run.exclusive for row in done)
    had = f"{plural_text(len(done), 'run')} had {'its' if alone == 1 else 'their'} host"
    said = f"{which} ran {how}; {alone} of {had} free of this yard's other runs."
    return " ".join([said, *_anew([row.run for row in done])])


def _anew(runs: Sequence[Run]) -> list[str]:
    """Which of these successful runs stand for earlier runs of their settings, and why; [] if none do."""
    firsts = {run.pk: run.repeats_id for run in runs if run.repeats_id is not None}
    roots = set(firsts.values())
    of_settings = Q(pk__in=roots) | Q(repeats__in=roots)
    others = Run.objects.filter(of_settings, state=State.SUCCEEDED).exclude(pk__in=firsts)
    measured = {first or pk for pk, first in others.values_list("pk", "repeats")} if firsts else set()
    counts = Counter(first in measured for first in firsts.values())
    why = {True: "was more disturbed", False: "ended without a result"}
    return [
        f"{count} of them {'stands' if count == 1 else 'stand'} for an earlier run that {why[again]}."
        for again, count in sorted(counts.items(), reverse=True)
    ]


def _disturbance(view: Overview, labels: Mapping[int, str]) -> tuple[str, list[Link]]:
    known = [(row.entry.others, row.run) for row in view.rows if row.entry.others is not None]
    if not known:
        return "Not measured.", []
    noisy = sum(share > DISTURBED_ABOVE for share, _ in known)
    most, run = max(known, key=itemgetter(0))
    took = f"Other processes took {most_percent_text(most)} of a device"
    counts = f"{plural_text(len(known), 'run')} {'counts' if noisy == 1 or len(known) == 1 else 'count'}"
    return f"{took}; {noisy} of {counts} as disturbed.", [_to(run, labels, "metrics")]


def _pace(view: Overview) -> str:
    """How much the speed of the host itself differed between the runs."""
    known = sum(row.entry.pace is not None for row in view.rows)
    if not known:
        return "Not measured."
    how = f"A fixed small computation between the timed steps of {known} of {plural_text(len(view.rows), 'run')}"
    if view.pace_spread is None:
        return f"{how}; no two can be compared."
    longer = percent_text(view.pace_spread)
    at_most = f"less than {longer.removeprefix('under ')}" if longer.startswith("under ") else f"up to {longer}"
    said = [f"{how} took a device {at_most} longer in one run than in another."]
    return " ".join(said + [contention_text(*each) for each in view.companies.items()])
