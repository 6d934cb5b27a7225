"""Seconds of a step for which pipeline ranks wait for messages between stages, for columns of plans.

Whether a message is hidden depends on the schedule. A rank keeps so many micro-batches at once, and each of them for as
long as its way to the last stage and back takes, with all messages. So a micro-batch takes at least this way over that
number, and messages are waited for as far as it is longer than the slowest rank's work. 1F1B keeps just as many as
without messages: it waits for all. With W put off as in ZB-H1 the way is W shorter for the same number, in ZB-H2, ZB-V
and with several chunks the number is larger. GPipe sends all one way first. What is hidden slows compute, as other
communication does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parallel_core.plan.cluster.efficiency import Machine
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import GPIPE, INTERLEAVED, Bools, Floats, Plans


def exposed(job: Job, plans: Plans, machine: Machine, m: Floats, each: Sequence[Floats], longest: Floats) -> Floats:
    """Seconds a step of activations and gradients between stages: of each of `m` micro-batches over the slowest hop,
    and of the first and the last one over all hops. `each`: F, B and W of a micro-batch on an inner rank; `longest`:
    all work of one on the slowest rank.

    Without `overlap_pp` each rank waits for every message, as those of Megatron-LM did at first.
    """
    slowest, hops = _hops(job, plans, machine)
    hides = _hides(plans) & job.software.overlap_pp
    both = 2 * plans.chunks * slowest
    waits = np.clip(_least(plans, slowest, each) - longest, machine.efficiency.beside * both, both)
    ends = np.where(hides, _ends(plans), 2.0) * hops
    return np.where(plans.pp > 1, m * np.where(hides, waits, both) + ends, 0.0)


def _hops(job: Job, plans: Plans, machine: Machine) -> tuple[Floats, Floats]:
    """Seconds of a message over (the slowest hop, all hops). Each tensor rank sends its part, which is then gathered
    inside the host unless the sequence stays split (Narayanan et al. 2021b, 4.1)."""
    boundary = job.model.seq * plans.micro_batch * job.model.hidden * plans.element
    inside, between = (machine.message(boundary / plans.tp, local) for local in (True, False))
    whole = machine.ring(boundary, plans.tp, np.ones_like(plans.tp), halves=1.0)
    gathered = np.where(plans.sequence_parallel, 0.0, whole)
    far = machine.cluster.hops_between_hosts(plans.dp * plans.tp, plans.pp)
    hops = far * between + (plans.pp - 1 - far) * inside + (plans.pp - 1) * gathered
    return np.where(far > 0, between, inside) + gathered, hops


def _hides(plans: Plans) -> Bools:
    """Whether the schedule leaves time for messages."""
    several = (plans.schedule == INTERLEAVED) & (plans.chunks > 1)
    return np.asarray(plans.split_backward | several | (plans.schedule == GPIPE))


def _least(plans: Plans, message: Floats, each: Sequence[Floats]) -> Floats:
    """Seconds that a micro-batch takes at least once the pipeline is full, by the messages of one rank, each of which
    takes the links in its direction, and by its way there and back."""
    p, v, (f, b, w) = plans.pp, plans.chunks, each
    none = 0 * f
    turns = p * v * (v + 1) / 2  # over all chunks of the first rank: on the way, each to the last stage
    looped = (turns / v * (f + b + w) + 2 * (turns - v) * message) / (p * (v + 1) - 1)
    back = p * (f + b) + 2 * (p - 1) * message
    found = plans.chosen(
        "schedule",
        {
            "gpipe": np.maximum(f, message) + np.maximum(b + w, message),
            "interleaved": np.maximum(v * message, looped),
            "zb-h1": back / p,
            "zb-h2": np.maximum(message, back / (2 * p - 1)),
            "zb-v": np.maximum(2 * message, (back + 2 * (p - 1) * message) / (2 * p - 1)),
            **dict.fromkeys(("1f1b", "1f1b-stash", "1f1b-2bw"), none),
        },
    )
    return np.asarray(found)


def _ends(plans: Plans) -> Floats:
    """How often all hops are waited for one after another while the pipeline fills and drains: there and back; in loops
    between chunks, too; where W is put off a second time, as forwards wait for the first backwards. ZB-H2 has others to
    do then, and W at the end."""
    loops = 2 * (plans.pp * plans.chunks - 1) / np.maximum(plans.pp - 1, 1)
    two, four = np.full((2, len(plans)), [[2.0], [4.0]])
    return plans.chosen(
        "schedule",
        {
            "gpipe": two,
            "interleaved": loops,
            "zb-h1": four,
            "zb-h2": two / 2,
            "zb-v": four,
            **dict.fromkeys(("1f1b", "1f1b-stash", "1f1b-2bw"), two),
        },
    )
