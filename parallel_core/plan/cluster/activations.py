"""Bytes of activations: Korthikanti et al. 2022, section 4, for any widths, and with FlashAttention."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import FULL, Floats, Plans


class LayerActivations(NamedTuple):
    """Bytes of one layer's activations for one micro-batch on one rank."""

    kept: Floats
    """Kept from the layer's forward to its backward under the plan's recomputation: Table 2 of the paper."""
    rebuilt: Floats
    """Recomputed activations, additional while the layer's own backward runs."""


def of_layer(job: Job, plans: Plans) -> LayerActivations:
    """Bytes that one layer keeps, and those that recomputation rebuilds.

    Equation 1 is 10 + 24 + 5as/h bytes for each of sbh elements; equation 2 divides the 24 and the attention by t,
    equation 4 (sequence parallel) all of it; section 5 drops the attention (selective) or keeps 2 (full). The 10 are
    the inputs of two norms, QKV and the MLP (2 each) and two dropout masks; the 24 are Q, K, V, the projection's input,
    and the inner activations of the MLP. Grouped keys, a gated MLP and no dropout change these terms accordingly.
    """
    model, e = job.model, plans.element
    tokens = model.seq * plans.micro_batch
    outside = tokens * model.hidden * (4 * e + (0 if model.gated else 2))
    inner = 3 if model.gated else 2
    inside = tokens * e * (2 * model.hidden + 2 * model.kv_width + inner * model.ffn)
    core = _attention(job, plans) / plans.tp
    inside = inside + np.where(plans.by_columns, _gathered(job, plans) * (plans.tp - 1), 0.0)
    body = inside / plans.tp + outside / np.where(plans.sequence_parallel, plans.tp, 1)
    # A full checkpoint is kept whole on every tensor rank: the paper's choice, which saves an all-gather (section 5).
    checkpoint = tokens * model.hidden * e
    kept = plans.chosen("recompute", {"none": body + core, "selective": body, "full": checkpoint})
    return LayerActivations(kept, body + core - np.where(plans.recompute == FULL, 0, kept))


def _gathered(job: Job, plans: Plans) -> Floats:
    """Inputs of the projection and of the MLP's last layer, which a rank keeps unsharded where columns are gathered;
    FlashAttention keeps its own output as well."""
    model = job.model
    beside = model.hidden / np.maximum(plans.tp - 1, 1) if job.software.flash else 0.0
    return model.seq * plans.micro_batch * plans.element * (model.hidden + model.ffn + beside)


def _attention(job: Job, plans: Plans) -> Floats:
    """Softmax, its dropout mask and the dropout's output, s x s a head; FlashAttention keeps one fp32 a row instead."""
    model, e = job.model, plans.element
    per_row: Floats | float = 4.0 if job.software.flash else model.seq * (e if model.gated else 2 * e + 1)
    return model.heads * model.seq * plans.micro_batch * per_row


def of_embedding(job: Job, plans: Plans) -> Floats:
    """The dropout mask after the embedding, for one micro-batch (section 4.3)."""
    model = job.model
    mask = 0.0 if model.gated else 1.0
    return mask * model.seq * plans.micro_batch * model.hidden / np.where(plans.sequence_parallel, plans.tp, 1)


def of_head(job: Job, plans: Plans) -> Floats:
    """Inputs of the last norm and of the output layer, and the logits in fp32 (section 4.3)."""
    model, e = job.model, plans.element
    tokens = model.seq * plans.micro_batch
    inputs = 2 * e * tokens * model.hidden / np.where(plans.sequence_parallel, plans.tp, 1)
    return inputs + 4 * tokens * model.vocab / plans.tp


def deferred_head(job: Job, plans: Plans) -> Floats:
    """What a W that is still to come needs of the output layer, for one micro-batch: its input and the logits'
    gradient, both as wide as an activation; nothing where its weights are frozen."""
    tokens = job.model.seq * plans.micro_batch
    inputs = tokens * job.model.hidden / np.where(plans.sequence_parallel, plans.tp, 1)
    needed = plans.element * (inputs + tokens * job.model.vocab / plans.tp)
    return 0 * needed if job.adapters else needed


def in_flight(job: Job, plans: Plans, stage: int) -> Floats:
    """Most micro-batches whose activations a rank keeps at once, for all its layers: `stage` 0 or 1 from the first one
    on, -1 the last.

    1F1B: p - i on rank i; GPipe: all; interleaved: 1 + (p - 1) / (p v) times 1F1B (Korthikanti et al. 2022, 4.2.3);
    ZB-H1: p, and ZB-H2: 2p - 1 (Qi et al. 2024a, Table 2); ZB-V: p on every rank. Without a flush as 1F1B, also where a
    step has fewer micro-batches: the pipeline stays full, with those of several steps.
    """
    p, v = plans.pp, plans.chunks
    m = np.maximum(job.batch / (plans.dp * plans.micro_batch), 1.0)  # however many replicas: each has one at least
    line = np.ones_like(p) if stage == -1 else np.maximum(p - stage, 1)
    # A rank's chunks in flight: those of the warm-up and one more, each a v-th of the rank's layers.
    looped = (p * (v - 1) + 2 * line - 1) / v
    by_schedule = {
        "gpipe": m, "1f1b": line, "interleaved": np.where(v > 1, looped, line), "1f1b-stash": line, "1f1b-2bw": line,
        "zb-h1": p, "zb-h2": 2 * p - 1, "zb-v": p,
    }  # fmt: skip
    found = plans.chosen("schedule", by_schedule)
    return np.where(p == 1, 1.0, np.where(plans.asynchronous, found, np.minimum(found, m)))
