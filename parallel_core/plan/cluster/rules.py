"""Why a plan is not possible: one bit a rule, so each of many refusals is one number. `verdict` has the sentences."""

from __future__ import annotations

from enum import IntFlag

import numpy as np

from parallel_core.plan.cluster import memory
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.memory import Memory
from parallel_core.plan.cluster.plans import INTERLEAVED, TWO_BW, Floats, Ints, Plans


class Reason(IntFlag):
    """What is wrong with a plan; flags combine."""

    HEADS = 1
    LAYERS = 2
    BATCH = 4
    ROUNDS = 8
    FEW = 16
    DEVICES = 32
    HOST = 64
    MEMORY = 128
    COLUMNS = 256
    SEQUENCE = 512
    FFN = 1024


def structure(job: Job, cluster: Cluster, plans: Plans) -> Ints:
    """Reasons other than memory: what does not divide, and the requirements of a schedule."""
    model = job.model
    m = job.batch / (plans.dp * plans.micro_batch)
    wrong = {
        Reason.HEADS: ~model.splits_heads(plans.tp),
        Reason.FFN: model.ffn % plans.tp != 0,
        Reason.SEQUENCE: plans.sequence_parallel & (model.seq % plans.tp != 0),
        Reason.LAYERS: ~memory.divides(job, plans),
        Reason.BATCH: job.batch % (plans.dp * plans.micro_batch) != 0,
        Reason.ROUNDS: (plans.schedule == INTERLEAVED) & (plans.pp > 1) & (m % plans.pp != 0),
        Reason.FEW: m < fewest_micro_batches(plans),
        Reason.DEVICES: plans.devices > cluster.devices,
        Reason.COLUMNS: plans.by_columns & ((plans.tp == 1) | plans.sequence_parallel),
    }
    return _packed(wrong, len(plans))


def fewest_micro_batches(plans: Plans) -> Floats:
    """The least micro-batches of a step: one a stage where the backward is split; p - 1 with 2BW, since two weight
    versions do not last for fewer (Narayanan et al. 2021a, section 3.1)."""
    two_bw = (plans.schedule == TWO_BW) & (plans.pp > 1)
    return np.where(plans.split_backward, plans.pp, np.where(two_bw, plans.pp - 1, 0.0))


def bytes_of(cluster: Cluster, plans: Plans, found: Memory) -> Ints:
    """Reasons of memory: on the device, and on the host if the optimizer is there."""
    wrong = {
        Reason.MEMORY: found.peak > cluster.capacity,
        Reason.HOST: found.host * beside(cluster, plans.devices) > cluster.host_memory,
    }
    return _packed(wrong, len(plans))


def beside(cluster: Cluster, devices: Floats | int) -> Floats:
    """Ranks on one host, of plans with so many devices."""
    return np.minimum(devices, cluster.per_host)


def _packed(wrong: dict[Reason, np.ndarray], count: int) -> Ints:
    codes = np.zeros(count, np.int64)
    for reason, where in wrong.items():
        codes |= np.where(where, int(reason), 0)
    return codes
