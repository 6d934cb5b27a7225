"""Seconds of a training step for columns of plans, as parts that add up.

A rank's compute for all its micro-batches on the slowest stage; the pipeline bubble of its schedule; the exposed parts
of messages, gradient reduction and optimizer. Ranks are laid out tensor, then data, then pipeline, as in Megatron-LM: a
tensor group stays in one host where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallel_core.plan.cluster import memory, messages, work
from parallel_core.plan.cluster.efficiency import Efficiency, Machine, fitted
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import SCHEDULES, STASH, ZB_V, Floats, Plans
from parallel_core.plan.split_bubbles import IDLE

WORDS = {
    "compute": "forward and backward",
    "recompute": "recomputation",
    "tensor": "tensor-parallel collectives",
    "bubble": "pipeline bubble",
    "messages": "messages between stages",
    "gradients": "gradients and weights between replicas",
    "optimizer": "optimizer",
    "offload": "optimizer state to and from the host",
}


@dataclass(frozen=True)
class Step:
    """Seconds of a step by part (the keys of WORDS), on the rank that finishes last; `forward` is that part of
    `compute`."""

    compute: Floats
    recompute: Floats
    tensor: Floats
    bubble: Floats
    messages: Floats
    gradients: Floats
    optimizer: Floats
    offload: Floats
    forward: Floats

    @property
    def total(self) -> Floats:
        parts = [getattr(self, name) for name in WORDS]
        return sum(parts[1:], parts[0])

    def parts(self, i: int) -> dict[str, float]:
        """Seconds of plan `i` by part."""
        return {name: float(getattr(self, name)[i]) for name in WORDS}


def of(job: Job, cluster: Cluster, plans: Plans, efficiency: Efficiency | None = None) -> Step:
    """Time of every plan, whether or not it fits (see `memory`)."""
    machine = Machine(cluster, efficiency or fitted(), plans)
    m = job.batch / (plans.dp * plans.micro_batch)
    layer, head = work.layer(job, plans, machine), work.head(job, plans, machine)
    # The slowest rank: an inner one, or that of the output layer, which has fewer layers where the ends count as such.
    inner, outer, final = (
        memory.layers_of_rank(job, plans, place) for place in (memory.SECOND, memory.FIRST, memory.LAST)
    )
    short = inner - np.where(plans.schedule == ZB_V, outer, final)
    last = np.where(inner * layer.total >= (inner - short) * layer.total + head.total, 0.0, 1.0)
    layers = inner - last * short
    bubble = _bubble(plans, m, layer, head, (inner, short, last))
    longest = layers * layer.total + last * head.total
    sent = messages.exposed(job, plans, machine, m, _split(layer, inner), longest)
    gradients, offload, optimizer = _update(job, plans, machine, layers * (layer.inputs + layer.weights))
    return Step(
        m * (layers * layer.compute + last * head.compute),
        m * layers * layer.recompute,
        m * (layers * layer.collectives + last * head.collectives),
        bubble,
        sent,
        gradients,
        optimizer,
        offload,
        m * (layers * layer.forward + last * head.forward),
    )


def _split(one: work.Seconds, count: Floats) -> Sequence[Floats]:
    """Seconds of F, B and W of a micro-batch in so many layers."""
    b = one.inputs + one.recompute + one.collective_backward + one.collective_recompute
    return count * (one.forward + one.collective_forward), count * b, count * one.weights


def _bubble(
    plans: Plans, m: Floats, layer: work.Seconds, head: work.Seconds, ranks: tuple[Floats, Floats, Floats]
) -> Floats:
    """Idle seconds of a step with a flush, from the first operation of any rank to the last: (p - 1)(F + B + W),
    interleaved a v-th of it (Narayanan et al. 2021b, 2.2.2); of zero-bubble schedules `split_bubbles`; 0 without a
    flush, once the pipeline is full. `ranks`: layers of an inner rank, by how many that of the output layer has fewer,
    and whether it is the slowest, nevertheless. Raises KeyError for a schedule without a formula."""
    inner, short, last = ranks
    each = f, b, w = _split(layer, inner)
    whole = (plans.pp - 1) * (f + b + w)
    none = 0 * whole
    flushed = {"gpipe": whole, "1f1b": whole, "interleaved": whole / plans.chunks, **dict.fromkeys(IDLE, none)}
    found = plans.chosen("schedule", {**flushed, "1f1b-stash": none, "1f1b-2bw": none})
    for name, idle in IDLE.items():
        own = plans.schedule == SCHEDULES.index(name)
        parts = [each, *_differences(name, layer, head, short, last)]
        times = [[np.broadcast_to(column, own.shape)[own] for column in columns] for columns in parts]
        found[own] = idle(plans.pp[own], m[own], *times) + m[own] * np.minimum(sum(times[1]), 0.0)
    return found


def _differences(
    schedule: str, layer: work.Seconds, head: work.Seconds, short: Floats, last: Floats
) -> list[Sequence[Floats]]:
    """By how much F, B and W of the output layer's rank are longer than those of others, where it is the slowest; in a
    V schedule everywhere, and by how much those of its first chunk are shorter, for which the rank may wait."""
    vee = schedule == "zb-v"
    counted = np.ones_like(last) if vee else last
    longer = [a - b for a, b in zip(_split(head, counted), _split(layer, counted * short), strict=True)]
    return [longer, _split(layer, short / 2)] if vee else [longer]


def _update(job: Job, plans: Plans, machine: Machine, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """(gradients and weights between replicas, host traffic, optimizer): exposed seconds a step.

    ZeRO 2 and 3 reduce gradients after every micro-batch; ZeRO-3 gathers weights before every forward and backward.
    """
    places = (memory.FIRST, memory.SECOND)  # an inner rank has more where the ends count as layers
    whole, count = (np.maximum(*parts) for parts in zip(*(memory.counts(job, plans, at) for at in places), strict=True))
    w, g, o = (plans.bytes_each(part) for part in ("weights", "sent", "optimizer"))
    m = job.batch / (plans.dp * plans.micro_batch)
    # PipeDream with weight stashing updates after every micro-batch (Narayanan et al. 2019), all others once a batch.
    steps = np.where((plans.schedule == STASH) & (plans.pp > 1), m, 1.0)
    gathered = np.where(plans.zero >= 3, whole, count) * w
    hides = backward if job.software.overlap_dp else np.zeros_like(backward)
    sent = _between_replicas(plans, machine, (count * g, gathered), steps, m, hides)
    tied = (
        machine.message(job.model.embedding / plans.tp * g, plans.devices <= machine.cluster.per_host)
        if job.model.tied and not job.adapters
        else 0.0
    )
    own = count / np.where(plans.zero >= 1, plans.dp, 1)
    moved = steps * (own * (2 * o + 2 * g + w) + count * g)
    host = machine.cluster
    there = steps * own * ((g + w) / host.device.pcie + 2 * o * host.per_host / host.host_bandwidth)
    step = machine.moved(np.where(plans.offload, steps * count * g, moved))
    return sent + np.where(plans.pp > 1, tied, 0.0), np.where(plans.offload, there, 0.0), step


def _between_replicas(
    plans: Plans, machine: Machine, sizes: tuple[Floats, Floats], steps: Floats, m: Floats, hides: Floats
) -> Floats:
    """Exposed seconds a step of gradients and weights between replicas. `sizes`: bytes of gradients that are reduced
    and of weights that are gathered; `steps`: updates, `m`: micro-batches a step; `hides`: seconds of a
    micro-batch's backward that they may overlap with."""
    half = [machine.ring(size, plans.dp, plans.tp, halves=1.0) for size in sizes]
    reduce_times = np.where(plans.zero >= 2, m, steps)
    gather_times = np.where(plans.zero >= 3, 2 * m, steps)
    # The second half of an all-reduce gathers gradients, with ZeRO weights instead.
    sent = reduce_times * half[0] + np.where(plans.zero >= 1, gather_times * half[1], reduce_times * half[0])
    # Overlaps with the backward of the last micro-batch, or, for ZeRO 2 and 3, of every one.
    hidden = np.minimum(sent, hides * reduce_times)
    return sent - (1 - machine.efficiency.beside) * hidden
