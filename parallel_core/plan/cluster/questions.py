"""Questions about a job on a cluster, by name; each answer is one sentence and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from parallel_core.analysis.quantities import bytes_text, count_text, percent_text, ratio_text, seconds_text
from parallel_core.plan.cluster import step
from parallel_core.plan.cluster.hardware import Cluster, devices
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.search import Found, Space, search

COUNTED = 24
"""Device counts tried for the fewest."""
BETWEEN = 64
"""Device counts tried between one that holds nothing and its double; a search takes some hundredths of a second."""


def lean(space: Space) -> Space:
    """A smaller space for questions that search again: what it leaves out seldom wins by more than some percent. What
    the asker chose (precision, bytes a parameter, offload) stays."""
    return replace(
        space,
        sequence_parallel=(True,),
        schedules=tuple(name for name in space.schedules if name in ("1f1b", "interleaved")) or space.schedules,
        micro_batches=tuple(size for size in space.micro_batches if size <= 4) or space.micro_batches[:1],
        zero=tuple(stage for stage in space.zero if stage != 2) or space.zero,
        by_columns=(False,),
    )


@dataclass(frozen=True)
class Answer:
    """`numbers` = rows of (what, value) as text."""

    question: str
    sentence: str
    numbers: list[tuple[str, str]] = field(default_factory=list)


def what_fits(job: Job, cluster: Cluster, found: Found) -> Answer:
    """How many of the plans fit, and the one that takes least."""
    question = "What fits?"
    if not found.timed:
        least = np.nanmin(found.peak) if found.too_large else np.nan
        needs = f"; the smallest plan needs {bytes_text(least)} a device" if np.isfinite(least) else ""
        return Answer(question, f"0 of {count_text(found.too_large)} plans fit {bytes_text(cluster.capacity)}{needs}.")
    least = int(found.order[np.argmin(found.peak[found.order])])
    text = f"{count_text(found.timed)} of {count_text(found.timed + found.too_large)} plans fit; least memory: "
    text += f"{found.plans.row(least).label()}, {bytes_text(found.peak[least])} a device."
    shown = [(found.plans.row(i).label(), seconds_text(found.seconds[i])) for i in found.best(5)]
    return Answer(question, text, shown)


def fewest(job: Job, cluster: Cluster, found: Found) -> Answer:
    """The fewest devices that hold the model at this batch, whatever the time: doubled until a plan fits, then every
    count of whole hosts since the last that held none."""
    counts = [n for n in _counts(cluster) if n < cluster.devices] + [cluster.devices] * bool(found.timed)
    high, few = _first(job, cluster, found, counts)
    if few is None:
        held = f"{count_text(cluster.devices)} devices hold" if cluster.devices > 1 else "1 device holds"
        return Answer("Fewest GPUs?", f"Not even {held} it.")
    below, less = _first(job, cluster, found, _between(cluster, max((n for n in counts if n < high), default=0), high))
    count, few = (below, less) if less else (high, few)
    i = few.best()[0]
    text = f"{count_text(count)} devices are the fewest that hold it" if count > 1 else "1 device holds it"
    text += f": {few.plans.row(i).label()}, {seconds_text(few.seconds[i])} a step."
    return Answer("Fewest GPUs?", text)


def _first(job: Job, cluster: Cluster, found: Found, counts: Iterable[int]) -> tuple[int, Found | None]:
    """The first of some device counts on which a plan fits, and its plans."""
    for count in counts:
        few = search(job, replace(cluster, devices=count), lean(found.space))
        if few.timed:
            return count, few
    return 0, None


def _counts(cluster: Cluster) -> list[int]:
    """1, 2, 4 ... within a host, then whole hosts, doubling."""
    inside = [n for n in (2**i for i in range(COUNTED)) if n < cluster.per_host]
    return inside + [cluster.per_host * 2**i for i in range(COUNTED) if cluster.per_host * 2**i <= cluster.devices]


def _between(cluster: Cluster, low: int, high: int) -> range:
    """Device counts between two, each once where a host holds both, else whole hosts, and no more than BETWEEN: of far
    more the next count that was tried stands for those just below it."""
    host = 1 if high <= cluster.per_host else cluster.per_host
    return range(low + host, high, host * -(-(high - low) // (host * BETWEEN)))


def free_communication(job: Job, cluster: Cluster, found: Found) -> Answer:
    """What would be gained if messages took no time."""
    free = replace(cluster, link=inf, network=inf)
    return _with(job, found, free, "Free communication?", "Free communication would save", "of the best plan's step")


def faster_links(job: Job, cluster: Cluster, found: Found) -> Answer:
    """Twice the rate inside hosts, and twice the rate between them."""
    if not found.timed:
        return Answer("Faster links?", _NOTHING)
    inside = _saved(job, found, replace(cluster, link=2 * cluster.link))
    between = _saved(job, found, replace(cluster, network=2 * cluster.network))
    text = f"Twice the link inside a host saves {percent_text(inside)} of the best plan's step; twice the network "
    text += f"{percent_text(between)}."
    return Answer("Faster links?", text)


def larger_batch(job: Job, cluster: Cluster, found: Found) -> Answer:
    """Twice the sequences a step: twice the micro-batches."""
    question = "More micro-batches?"
    if not found.timed:
        return Answer(question, _NOTHING)
    best = found.best()[0]
    more = replace(job, batch=2 * job.batch)
    seconds = float(step.of(more, cluster, found.plans.take(np.array([best]))).total[0])
    gain = 2 * float(found.seconds[best]) / seconds
    return Answer(question, f"A batch of {count_text(more.batch)} gives {ratio_text(gain)} the tokens a second.")


def next_device(job: Job, cluster: Cluster, found: Found) -> Answer:
    """The same number of every other device of the catalogue that is at least as fast, with the same links."""
    question = "The next GPU?"
    if not found.timed:
        return Answer(question, _NOTHING)
    here, rows = float(found.seconds[found.best()[0]]), []
    for device in devices().values():
        if device.half > cluster.device.half or device.memory > cluster.device.memory:
            other = search(job, replace(cluster, device=device), lean(found.space))
            if other.timed:
                rows.append((device.name, here / float(other.seconds[other.best()[0]])))
    if not rows:
        return Answer(question, "No device of the catalogue is faster or larger.")
    name, ratio = max(rows, key=lambda row: row[1])
    text = f"{name} would be {ratio_text(ratio)} as fast on as many devices and the same links."
    return Answer(question, text, [(name, ratio_text(ratio)) for name, ratio in rows])


_NOTHING = "Nothing fits yet, so there is nothing to compare with."


def _with(job: Job, found: Found, cluster: Cluster, question: str, head: str, tail: str) -> Answer:
    if not found.timed:
        return Answer(question, _NOTHING)
    return Answer(question, f"{head} {percent_text(_saved(job, found, cluster))} {tail}.")


def _saved(job: Job, found: Found, cluster: Cluster) -> float:
    """Share of the best plan's step that it saves on another cluster, the plan chosen anew among the fastest."""
    near = found.order[:2000]
    there = step.of(job, cluster, found.plans.take(near)).total
    return float(1 - there.min() / found.seconds[near[0]])


Question = Callable[[Job, Cluster, Found], Answer]
QUESTIONS: dict[str, Question] = {
    "fits": what_fits,
    "fewest": fewest,
    "free": free_communication,
    "links": faster_links,
    "batch": larger_batch,
    "next": next_device,
}
"""By name, for the command line and the page; `why` (not this one) takes a plan and is `why.judge`."""


def ask(name: str, job: Job, cluster: Cluster, found: Found) -> Answer:
    """Raises KeyError for a question that is not known."""
    return QUESTIONS[name](job, cluster, found)
