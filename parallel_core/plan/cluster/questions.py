"""Questions about a job on a cluster, by name; each answer is one sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from parallel_core.analysis.quantities import bytes_text, count_text, percent_text, ratio_text, seconds_text
from parallel_core.plan.cluster import memory, rules, step
from parallel_core.plan.cluster.device_counts import counts
from parallel_core.plan.cluster.efficiency import Efficiency, fitted
from parallel_core.plan.cluster.hardware import Cluster, devices
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.search import SearchResult, Space, evaluate, grid, lean, search
from parallel_core.plan.cluster.verdict import none_fits

NEAR = 2000
"""The fastest plans, of which some may be the fastest on another device, too."""


@dataclass(frozen=True)
class Answer:
    """`numbers`: rows of (label, value) as text."""

    question: str
    sentence: str
    numbers: list[tuple[str, str]] = field(default_factory=list)


def what_fits(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """How many of the plans fit, and the one with least memory."""
    question = "What fits?"
    if not found.timed:
        return Answer(question, none_fits(job, cluster, found))
    least = int(found.order[np.argmin(found.peak[found.order])])
    text = f"{count_text(found.timed)} of {count_text(found.timed + found.too_large)} plans fit; least memory: "
    text += f"{found.label(least)}, {bytes_text(found.peak[least])} a device."
    shown = [(found.label(i), seconds_text(found.seconds[i])) for i in found.best(5)]
    return Answer(question, text, shown)


def fewest(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """The fewest devices that hold the model at this batch, whatever the time: any number within a host, else whole
    hosts. Tries every count that a plan can have, from one device up."""
    space, question = lean(found.space), "Fewest GPUs?"
    count = next((n for n in counts(job, cluster, space) if _holds(job, replace(cluster, devices=n), space)), 0)
    if not count:
        held = f"{count_text(cluster.devices)} devices hold" if cluster.devices > 1 else "1 device holds"
        return Answer(question, f"Not even {held} it.")
    few = search(job, replace(cluster, devices=count), space)
    i = few.best()[0]
    text = f"{count_text(count)} devices are the fewest that hold it" if count > 1 else "1 device holds it"
    text += f": {few.plans.row(i).label()}, {seconds_text(few.seconds[i])} a step."
    return Answer(question, text)


def _holds(job: Job, cluster: Cluster, space: Space) -> bool:
    """Whether any plan fits. Larger micro-batches or more chunks never need less memory: the smallest suffice. A V
    schedule may need less than 1F1B: its one rank with both ends may have no other layer."""
    plain = tuple(name for name in ("1f1b", "zb-v") if name in space.schedules)
    plans = grid(job, cluster, replace(space, most_micro_batch=1, schedules=plain or space.schedules))
    plans = plans.take(np.flatnonzero(rules.structure(job, cluster, plans) == 0))
    return bool(len(plans) and (rules.bytes_of(cluster, plans, memory.of(job, plans)) == 0).any())


def free_communication(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """The saving if communication took no time."""
    question = "Free communication?"
    if not found.timed:
        return Answer(question, _NOTHING)
    at_once = replace(fitted(), latency=0.0, network_latency=0.0)
    saved = _saved(job, found, replace(cluster, link=inf, network=inf), at_once)
    return Answer(question, f"Free communication would save {percent_text(saved)} of the best plan's step.")


def faster_links(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """The savings with twice the bandwidth inside hosts, and with twice the network bandwidth."""
    if not found.timed:
        return Answer("Faster links?", _NOTHING)
    inside = _saved(job, found, replace(cluster, link=2 * cluster.link))
    between = _saved(job, found, replace(cluster, network=2 * cluster.network))
    text = f"Twice the link inside a host saves {percent_text(inside)} of the best plan's step; twice the network "
    text += f"{percent_text(between)}."
    return Answer("Faster links?", text)


def larger_batch(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """The gain in tokens per second from twice the sequences a step, i.e. twice the micro-batches."""
    question = "More micro-batches?"
    if not found.timed:
        return Answer(question, _NOTHING)
    best = found.best()[0]
    more = replace(job, batch=2 * job.batch)
    seconds = float(step.of(more, cluster, found.plans.take(np.array([best]))).total[0])
    gain = 2 * float(found.seconds[best]) / seconds
    return Answer(question, f"A batch of {count_text(more.batch)} gives {ratio_text(gain)} the tokens a second.")


def next_device(job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """Speedup on as many of each other device of the catalogue that is faster or larger, with the same links."""
    question = "The next GPU?"
    if not found.timed:
        return Answer(question, _NOTHING)
    here, rows = float(found.seconds[found.best()[0]]), []
    for device in devices().values():
        if device.half > cluster.device.half or device.memory > cluster.device.memory:
            seconds = _seconds_on(job, replace(cluster, device=device), found)
            if seconds < inf:
                rows.append((device.name, here / seconds))
    if not rows:
        return Answer(question, "No device of the catalogue is faster or larger.")
    name, ratio = max(rows, key=lambda row: row[1])
    text = f"{name} would be {ratio_text(ratio)} as fast on as many devices and the same links."
    return Answer(question, text, [(name, ratio_text(ratio)) for name, ratio in rows])


def _seconds_on(job: Job, cluster: Cluster, found: SearchResult) -> float:
    """Seconds of the fastest plan on another cluster, of a smaller search and of the NEAR fastest plans of `found`; inf
    where none fits."""
    other = search(job, cluster, lean(found.space))
    known = evaluate(job, cluster, found.plans.take(found.order[:NEAR]))
    times = [seconds[order[:1]] for seconds, order in ((other.seconds, other.order), (known[2], known[3]))]
    return float(np.min(np.concatenate(times), initial=inf))


_NOTHING = "Nothing fits yet, so there is nothing to compare with."


def _saved(job: Job, found: SearchResult, cluster: Cluster, efficiency: Efficiency | None = None) -> float:
    """Share of the best plan's step saved on another cluster; the plan is chosen again among all that fit. `efficiency`
    there: default the fitted one."""
    there = step.of(job, cluster, found.plans.take(found.order), efficiency).total
    return float(1 - there.min() / found.seconds[found.order[0]])


Question = Callable[[Job, Cluster, SearchResult], Answer]
QUESTIONS: dict[str, Question] = {
    "fits": what_fits,
    "fewest": fewest,
    "free": free_communication,
    "links": faster_links,
    "batch": larger_batch,
    "next": next_device,
}
"""By name, for the command line and the page. `verdict` is not among them: it takes a plan (`verdict.judge`)."""


def ask(name: str, job: Job, cluster: Cluster, found: SearchResult) -> Answer:
    """The answer to a question by name. Raises KeyError for an unknown question."""
    return QUESTIONS[name](job, cluster, found)
