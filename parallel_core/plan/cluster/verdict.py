"""Whether a plan is possible, and if not, why: sentences, and the fastest change that makes it possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import (
    bytes_beside,
    bytes_text,
    count_text,
    percent_text,
    plural_text,
    rate_text,
    seconds_text,
)
from parallel_core.plan.cluster import memory, rules, step
from parallel_core.plan.cluster.changes import Change, cheapest
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.memory import Memory
from parallel_core.plan.cluster.plans import Plan, Plans, changed
from parallel_core.plan.cluster.rules import Reason
from parallel_core.plan.cluster.search import SearchResult
from parallel_core.rules import few
from parallel_core.schedule.traits import TRAITS

_PLACES = {memory.FIRST: "the first rank", memory.SECOND: "the second rank", memory.LAST: "the last rank"}

_ENDLESS = 1e12
"""Replicas that stand for an unlimited number of them: what memory of a rank remains then."""


@dataclass(frozen=True)
class Judged:
    """All about one plan. `peak`, `parts` and `instants`: bytes of the `fullest` rank. `seconds` of a step are given
    even if the plan does not fit, None if it cannot be built; `forward` is that part of the compute in `times`."""

    plan: Plan
    reasons: Reason
    peak: float
    capacity: float
    parts: dict[str, int]
    instants: dict[str, float]
    fullest: str
    seconds: float | None
    times: dict[str, float]
    forward: float
    sentences: tuple[str, ...]
    fix: Change | None

    @property
    def fits(self) -> bool:
        return not self.reasons

    @property
    def room(self) -> str:
        """Peak and capacity: `31 of 38 GiB`."""
        have = bytes_beside(self.capacity, self.peak)
        number, unit = have.split(" ")
        mine = bytes_beside(self.peak, self.capacity)
        return f"{mine.split(' ')[0]} of {number} {unit}" if mine.endswith(unit) else f"{mine} of {have}"


def judge(job: Job, cluster: Cluster, plan: Plan, suggest: bool = True) -> Judged:
    """All about one plan; with `suggest` also the fastest change that makes a refused plan possible."""
    one = Plans.of([plan])
    found, timed = memory.of(job, one), step.of(job, cluster, one)
    reasons = Reason(int(rules.structure(job, cluster, one)[0]))
    if not reasons & (Reason.HEADS | Reason.LAYERS):
        reasons |= Reason(int(rules.bytes_of(cluster, one, found)[0]))
    buildable = not reasons & ~(Reason.MEMORY | Reason.HOST)
    fix = cheapest(job, cluster, plan) if suggest and reasons else None
    return Judged(
        plan,
        reasons,
        float(found.peak[0]),
        cluster.capacity,
        found.parts(0),
        found.at(0),
        _PLACES[int(found.place[0])],
        float(timed.total[0]) if buildable else None,
        timed.parts(0) if buildable else {},
        float(timed.forward[0]) if buildable else 0.0,
        tuple(_sentences(job, cluster, plan, reasons, found)),
        fix,
    )


def _sentences(job: Job, cluster: Cluster, plan: Plan, reasons: Reason, found: Memory) -> list[str]:
    """One sentence for each reason, memory first."""
    out = [_too_large(job, cluster, plan, found)] if reasons & Reason.MEMORY else []
    out += [text for reason, text in _structure(job, cluster, plan).items() if reason & reasons]
    if reasons & Reason.HOST:
        beside = rules.beside(cluster, plan.devices)
        out.append(f"The host needs {_host_text(cluster, float(found.host[0]), int(beside))}.")
    return out


def _host_text(cluster: Cluster, host: float, beside: int) -> str:
    """What a host needs for the optimizers of `beside` ranks with `host` bytes each, and what it has."""
    needs, has = host * beside, cluster.host_memory
    text = f"{bytes_beside(needs, has)} for the optimizer of {plural_text(beside, 'rank')}"
    return f"{text}; it has {bytes_beside(has, needs)}"


def none_fits(job: Job, cluster: Cluster, found: SearchResult) -> str:
    """Where no plan of a search fits: by how much the smallest exceeds the device, or, of plans that fit the device,
    what their optimizer needs on the host."""
    tried, capacity = f"0 of {count_text(found.too_large)} plans fit", cluster.capacity
    offloaded = np.flatnonzero(found.codes == Reason.HOST)
    if len(offloaded):
        plans = found.plans.take(offloaded)
        host, beside = memory.of(job, plans).host, rules.beside(cluster, plans.devices)
        least = int(np.argmin(host * beside))
        few = f"{count_text(len(offloaded))} fit{'s' * (len(offloaded) == 1)} into {bytes_text(capacity)} a device"
        return f"{tried}: {few}, but the host needs {_host_text(cluster, float(host[least]), int(beside[least]))}."
    large = found.peak[(found.codes & Reason.MEMORY) != 0]
    if not len(large):
        return f"{tried} into {bytes_text(capacity)} a device."
    smallest = float(large.min())
    needs = bytes_beside(smallest, capacity)
    return f"{tried} into {bytes_beside(capacity, smallest)} a device; the smallest plan needs {needs}."


def _structure(job: Job, cluster: Cluster, plan: Plan) -> dict[Reason, str]:
    model, m = job.model, job.batch // (plan.dp * plan.micro_batch)
    kv = f" and {model.kv_heads} key heads" if model.kv_heads != model.heads else ""
    widths = few(model.tensor_widths, plan.tp)
    whole = few((tp for tp in model.tensor_widths if tp > 1 and model.seq % tp == 0), plan.tp)
    stages = few([p for p in range(1, model.layers + 1) if memory.even(model.layers, p * plan.chunks)], plan.pp)
    cut = f"{plan.pp} stages" + (f" of {plan.chunks} chunks" if plan.chunks > 1 else "")
    batch = count_text(job.batch)
    there = "is one" if cluster.devices == 1 else f"are {count_text(cluster.devices)}"
    replicas = plural_text(plan.dp, "replica")
    return {
        Reason.DEVICES: f"It takes {count_text(plan.devices)} devices; there {there}.",
        Reason.HEADS: f"TP {plan.tp} does not divide the {model.heads} heads{kv}; try {widths}.",
        Reason.FFN: f"TP {plan.tp} does not divide the inner width {count_text(model.ffn)}; try {widths}.",
        Reason.SEQUENCE: f"TP {plan.tp} does not divide a sequence of {count_text(model.seq)}, which SP splits; "
        f"use no SP{whole and f' or TP {whole}'}.",
        Reason.LAYERS: f"{model.layers} layers do not divide over {cut}"
        + (f"; try {stages} stages." if stages else ", nor over any other number of stages with as many chunks."),
        Reason.BATCH: f"A batch of {batch} does not divide over {replicas} x {plan.micro_batch} a micro-batch; "
        f"try {_multiples(job.batch, plan.dp * plan.micro_batch)}.",
        Reason.ROUNDS: f"Interleaving needs micro-batches in multiples of {plan.pp} stages; there {_are(m)}.",
        Reason.FEW: _few(plan, m),
        Reason.COLUMNS: "Columns are gathered whole within a tensor group: use TP 2 or more, without SP.",
    }


def _few(plan: Plan, m: int) -> str:
    """Why `m` micro-batches are too few for the schedule."""
    least = int(rules.fewest_micro_batches(Plans.of([plan]))[0])
    why = ", one a stage" if TRAITS[plan.schedule].split else ", or two weight versions do not last"
    return f"{plan.schedule} needs at least {least} micro-batches{why}; there {_are(m)}."


def _are(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {count}"


def _multiples(batch: int, unit: int) -> str:
    """The nearest multiples of `unit` below and above `batch`."""
    below = batch // unit * unit
    return " or ".join(count_text(found) for found in (below, below + unit) if found)


def _too_large(job: Job, cluster: Cluster, plan: Plan, found: Memory) -> str:
    """What takes the memory, and that more replicas do not help where this is so."""
    where = "every rank" if plan.pp == 1 else _PLACES[int(found.place[0])]
    left = memory.of(job, Plans.of([changed(plan, dp=int(_ENDLESS))]))
    state = float(left.built[0])
    if state > cluster.capacity:
        if plan.tp * plan.pp == 1 and not plan.zero:
            return f"Every rank holds the whole state, {bytes_text(state)}; no number of GPUs helps."
        keep = "holds" if plan.pp == 1 else "alone keeps"
        return f"{where[0].upper()}{where[1:]} {keep} its state, {bytes_text(state)}; more replicas do not help."
    parts = found.parts(0)
    largest = max(parts, key=lambda part: parts[part])
    peak, capacity = float(found.peak[0]), cluster.capacity
    share = percent_text(parts[largest] / peak)
    verb = "is" if largest == "optimizer" else "are"
    text = f"{bytes_beside(peak, capacity)} on {where}, of {bytes_beside(capacity, peak)}; "
    text += f"{CATEGORY_NAMES[largest]} {verb} {share}"
    return f"{text}." if float(left.peak[0]) <= cluster.capacity else f"{text}; more replicas do not help."


def time_sentence(job: Job, cluster: Cluster, judged: Judged) -> str:
    """Step time, tokens per second, and share of the peak of the devices that the plan uses, with how many it leaves
    idle; '' where the plan cannot be built."""
    if judged.seconds is None:
        return ""
    used, share = judged.plan.devices, percent_text(utilisation(job, cluster, judged.plan, judged.seconds))
    idle = cluster.devices - used
    of = (
        f" of {plural_text(used, 'device')}; {count_text(idle)} {'is' if idle == 1 else 'are'} idle" if idle > 0 else ""
    )
    times = f"{seconds_text(judged.seconds)} a step, {rate_text(job.tokens / judged.seconds)}"
    return f"{times}, {share} of the peak{of}."


def utilisation(job: Job, cluster: Cluster, plan: Plan, seconds: float) -> float:
    """Model FLOPs utilisation (Chowdhery et al. 2022): FLOPs needed over the peak of the plan's devices. A third of the
    FLOPs are weight gradients, which frozen weights do not have."""
    peak = cluster.device.single if plan.precision == "fp32" else cluster.device.half
    return job.model.flops(job.batch) * (2 + job.trained) / 3 / (seconds * plan.devices * peak)
