"""Seconds of one transformer layer and of the output layer for one micro-batch, from matrix products and memory
traffic.

Products are those of Korthikanti et al. 2022, appendix A; memory traffic of norms, dropout, activation and softmax is
counted for fused kernels: each input read once, each output written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_core.plan.cluster.efficiency import Machine
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import FULL, Floats, Plans


@dataclass(frozen=True)
class Seconds:
    """Seconds of one micro-batch: compute of forward, input gradient, weight gradient and recomputation; and exposed
    tensor-parallel collectives of the forward, the backward and a recomputed forward."""

    forward: Floats
    inputs: Floats
    weights: Floats
    recompute: Floats
    collective_forward: Floats
    collective_backward: Floats
    collective_recompute: Floats

    @property
    def compute(self) -> Floats:
        return self.forward + self.inputs + self.weights

    @property
    def collectives(self) -> Floats:
        return self.collective_forward + self.collective_backward + self.collective_recompute

    @property
    def total(self) -> Floats:
        return self.compute + self.recompute + self.collectives


class _Pass(NamedTuple):
    """Seconds in one direction: matrix products of the layer, of the attention core, and memory traffic of the rest."""

    products: Floats
    core: Floats
    moved: Floats


def layer(job: Job, plans: Plans, machine: Machine) -> Seconds:
    """Seconds of one layer on one rank."""
    ahead, back = _forward(job, plans, machine), _backward(job, plans, machine)
    columns, rows = (job.trained * part for part in _weights(job, plans, machine))  # frozen weights have no gradient
    weights = columns + rows + (0.0 if job.software.fused_gradients else _added(job, plans, machine))
    collective = _collective(job, plans, machine)
    gathers = _gathers(job, plans, machine)
    in_forward = np.where(plans.by_columns, 1.5 * collective + gathers[1], 2 * collective)
    in_backward = _exposed_backward(job, plans, machine, collective, columns)
    in_backward = in_backward + np.where(
        plans.by_columns, _exposed(job, plans, machine, gathers[0] + gathers[1], rows), 0.0
    )
    forward = ahead.products + ahead.core + ahead.moved
    recompute = plans.chosen("recompute", {"none": 0 * forward, "selective": ahead.core, "full": forward})
    again = np.where(plans.recompute == FULL, in_forward, 0.0)
    return Seconds(forward, back.products + back.core + back.moved, weights, recompute, in_forward, in_backward, again)


def _gathers(job: Job, plans: Plans, machine: Machine) -> tuple[Floats, Floats]:
    """Seconds of one all-gather (or reduce-scatter) of the projection's input, and of the MLP's last layer's input."""
    sizes = (job.model.seq * plans.micro_batch * width * plans.element for width in (job.model.hidden, job.model.ffn))
    attention, mlp = (machine.ring(size, plans.tp, np.ones_like(plans.tp), halves=1.0) for size in sizes)
    return attention, mlp


def _exposed(job: Job, plans: Plans, machine: Machine, scattered: Floats, rows: Floats) -> Floats:
    """Exposed seconds of scattering gradients of gathered inputs, overlapped with their layers' weight gradients."""
    beside = np.minimum(scattered, rows) if job.software.overlap_tp else 0.0 * scattered
    hidden = np.where(plans.split_backward, 0.0, beside)
    return scattered - (1 - machine.efficiency.beside) * hidden


def _exposed_backward(job: Job, plans: Plans, machine: Machine, collective: Floats, columns: Floats) -> Floats:
    """Exposed seconds of the backward's collectives: for each column-parallel product (QKV and MLP) an all-reduce of
    the input gradients. Sequence parallel replaces it by three halves (Korthikanti et al. 2022, 4.2.2): a gather of the
    output gradients, a gather of the inputs kept in parts, and a reduce-scatter.

    `overlap_tp`: the all-reduce overlaps with the weight gradient of the same product (unless the schedule defers
    that), the gather of the inputs with its input gradient. Overlapped compute is slowed: a collective takes
    multiprocessors.
    """
    split = np.where(plans.sequence_parallel, collective, 0.0)
    if not job.software.overlap_tp:
        return 2 * collective + split
    summed = 2 * collective - split
    hidden = np.where(plans.split_backward, 0.0, np.minimum(summed, columns))
    return split + (summed - hidden) + machine.efficiency.beside * (hidden + split)


def _forward(job: Job, plans: Plans, machine: Machine) -> _Pass:
    """QKV, projection and MLP. Memory traffic in elements: norm 2, bias with dropout and residual 3, activation 2
    (gated 3), the QKV bias and the context's transposition 2 each, softmax and its dropout 2 each; a mask is one byte
    an element."""
    model, t, e = job.model, plans.tp, plans.element
    tokens, h = model.seq * plans.micro_batch, np.asarray(float(model.hidden))
    qkv, inner = model.hidden + 2 * model.kv_width, model.ffn * (2.0 if model.gated else 1.0)
    products = (
        machine.product(tokens, qkv / t, h)
        + machine.product(tokens, *_second(plans, h, h))
        + machine.product(tokens, inner / t, h)
        + machine.product(tokens, *_second(plans, h, model.ffn))
    )
    mask = 0.0 if model.gated else 1.0
    wide = h / np.where(plans.sequence_parallel, t, 1)
    moved = np.where(plans.by_columns, 2 * (3 * h + model.ffn) * e, 0.0)  # gathered rank by rank, then concatenated
    moved = moved + wide * (10 * e + 2 * mask) + (model.ffn * (3 if model.gated else 2) + 2 * qkv + 2 * h) / t * e
    scores = _scores(job, plans) * ((2 + 2 * mask) * e + mask)
    core = _attention(job, plans, machine) + machine.moved(scores)
    return _Pass(products, core, machine.moved(tokens * moved))


def _backward(job: Job, plans: Plans, machine: Machine) -> _Pass:
    """Input gradients. Memory traffic in elements: norm 5 (its own gradients are a second kernel), dropout 2 and the
    sum of the residual's gradients 3, bias 1, activation 3 (gated 5), joining Q, K and V 2, softmax 3, its dropout
    2."""
    model, t, e = job.model, plans.tp, plans.element
    tokens, h = model.seq * plans.micro_batch, np.asarray(float(model.hidden))
    qkv, inner = model.hidden + 2 * model.kv_width, model.ffn * (2.0 if model.gated else 1.0)
    products = (
        machine.product(tokens, h, qkv / t)
        + machine.product(tokens, *_second(plans, h, h)[::-1])
        + machine.product(tokens, h, inner / t)
        + machine.product(tokens, *_second(plans, h, model.ffn)[::-1])
    )
    mask = 0.0 if model.gated else 1.0
    wide = h / np.where(plans.sequence_parallel, t, 1)
    biases = mask * (qkv + model.ffn) / t
    moved = wide * (16 * e + mask * (6 * e + 2)) + (model.ffn * (5 if model.gated else 3) + 2 * qkv + 2 * h) / t * e
    scores = _scores(job, plans) * ((3 + 2 * mask) * e + mask)
    # FlashAttention's backward recomputes the scores: 2.5 times its forward (Dao et al. 2022, section 3.1).
    core = _attention(job, plans, machine) * (2.5 if job.software.flash else 2.0) + machine.moved(scores)
    return _Pass(products, core, machine.moved(tokens * (moved + biases * e)))


def _weights(job: Job, plans: Plans, machine: Machine) -> tuple[Floats, Floats]:
    """Seconds of weight gradients: (column-parallel products (QKV, first of the MLP), row-parallel ones)."""
    model, t = job.model, plans.tp
    tokens, h = model.seq * plans.micro_batch, np.asarray(float(model.hidden))
    qkv, inner = model.hidden + 2 * model.kv_width, model.ffn * (2.0 if model.gated else 1.0)
    columns = machine.product(qkv / t, h, tokens) + machine.product(inner / t, h, tokens)
    second = (_second(plans, h, h), _second(plans, h, model.ffn))
    rows = [machine.product(outputs, inputs, tokens) for outputs, inputs in second]
    return columns, rows[0] + rows[1]


def _second(plans: Plans, outputs: Floats, inputs: Floats | float) -> tuple[Floats, Floats]:
    """(outputs, inputs) of a rank's part of the second linear layer of a pair: split by rows, or by columns."""
    cut = plans.tp
    return np.where(plans.by_columns, outputs / cut, outputs), np.where(plans.by_columns, inputs, inputs / cut)


def _attention(job: Job, plans: Plans, machine: Machine) -> Floats:
    """Scores and their product with the values; FlashAttention computes half of the causal square, on chip."""
    model = job.model
    heads = plans.micro_batch * model.heads / plans.tp
    s, d = np.asarray(float(model.seq)), np.asarray(float(model.head_dim))
    if not job.software.flash:
        return machine.product(s, s, d, heads) + machine.product(s, d, s, heads)
    return machine.product(s, d, s, heads)


def _scores(job: Job, plans: Plans) -> Floats | float:
    """Elements of the s x s matrices that are written to memory; 0 with FlashAttention."""
    return 0.0 if job.software.flash else job.model.seq * plans.micro_batch * job.model.seq * job.model.heads / plans.tp


def _added(job: Job, plans: Plans, machine: Machine) -> Floats:
    """Seconds to accumulate a micro-batch's weight gradients in a separate kernel: both are read, the sum written."""
    sent = plans.bytes_each("sent")
    return machine.moved(job.trained * job.model.layer_matrices / plans.tp * (2 * plans.element + 2 * sent))


def _collective(job: Job, plans: Plans, machine: Machine) -> Floats:
    """Seconds of one all-reduce of the boundary tensor (sequence parallel: reduce-scatter plus all-gather)."""
    boundary = job.model.seq * plans.micro_batch * job.model.hidden * plans.element
    return machine.ring(boundary, plans.tp, np.ones_like(plans.tp))


def head(job: Job, plans: Plans, machine: Machine) -> Seconds:
    """Output layer and loss; fp32 logits are read or written about five times forward and three times backward."""
    model = job.model
    tokens, columns = model.seq * plans.micro_batch, model.vocab / plans.tp
    h, none = np.asarray(float(model.hidden)), np.zeros(len(plans))
    logits = machine.moved(tokens * columns * 4.0)
    forward = machine.product(tokens, columns, h) + 5 * logits
    inputs, weights = machine.product(tokens, h, columns) + 3 * logits, machine.product(columns, h, tokens)
    weights = none if job.adapters else weights
    return Seconds(forward, inputs, weights, none, _collective(job, plans, machine), none, none)
