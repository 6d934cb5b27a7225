"""Bytes of the worst rank at four instants, for columns of plans.

Weights, gradients and optimizer state are bytes per parameter (`plans.STATES`) times the parameters of the rank,
divided by tensor and pipeline parallelism and, over replicas, by ZeRO 1 (optimizer), 2 (gradients too) and 3 (weights
too; Rajbhandari et al. 2020, section 5). Activations are in `activations`. The first rank holds the embedding and the
most micro-batches in flight, the last one the output layer and the logits; in a V schedule one rank holds both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from parallel_core.plan.cluster import activations
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import GPIPE, STASH, TWO_BW, ZB_V, Bools, Floats, Plans

INSTANTS = ("built", "end of forward", "peak", "optimizer step")
PARTS = ("params", "grads", "optimizer", "activations", "buffers")
"""Parts of a rank's memory, named like the memory meter's categories."""


@dataclass(frozen=True)
class Memory:
    """Bytes of the worst rank at its peak, by part; `first`: whether that is the rank of the embedding.

    `activations` are kept from forward to backward, `buffers` exist during one layer's backward or hold a gathered
    layer.
    """

    params: Floats
    grads: Floats
    optimizer: Floats
    activations: Floats
    buffers: Floats
    host: Floats
    """Bytes that the rank keeps on the host: an offloaded optimizer."""
    first: Bools

    @property
    def peak(self) -> Floats:
        """Bytes at the peak of a step."""
        return self.built + self.activations + self.buffers

    @property
    def built(self) -> Floats:
        """Bytes of parameters, gradients and optimizer state."""
        return self.params + self.grads + self.optimizer

    def at(self, i: int) -> dict[str, float]:
        """Bytes of plan `i` at each of INSTANTS: the first three ascend; at the last, activations are freed."""
        static, kept, passing = (float(column[i]) for column in (self.built, self.activations, self.buffers))
        gathered = static - float(self.grads[i])
        return dict(zip(INSTANTS, (gathered, static + kept, static + kept + passing, static), strict=True))

    def parts(self, i: int) -> dict[str, int]:
        """Bytes of plan `i` by part at the peak."""
        return {part: int(getattr(self, part)[i]) for part in PARTS}


def layers_per_chunk(job: Job, plans: Plans) -> Floats:
    """Layers of an inner chunk. Where the layers do not divide but two more would, the first and the last chunk have
    one layer less: embedding and output layer count as a layer each, as in Llama 3 (126 layers) and Qi et al. 2024."""
    places = plans.pp * plans.chunks
    return np.ceil((job.model.layers + np.where(job.model.layers % places, 2, 0)) / places)


def divides(job: Job, plans: Plans) -> Bools:
    """Whether the layers divide over all chunks of each plan (see `even`)."""
    return np.asarray(even(job.model.layers, plans.pp * plans.chunks))


def even(layers: int, places: Any) -> Any:
    """Whether `layers` divide over `places` chunks (a number or an array), evenly or with embedding and output layer in
    place of two layers."""
    return (layers % places == 0) | ((layers > 2) & ((layers + 2) % places == 0))


def parameters(job: Job, plans: Plans, last: bool) -> tuple[Floats, Floats]:
    """(parameters of the layers, of embedding or output layer) on one rank of the first or last stage, before ZeRO."""
    model = job.model
    chunk = layers_per_chunk(job, plans)
    short = np.where(model.layers % (plans.pp * plans.chunks), 1, 0)
    layers = np.where(plans.pp == 1, model.layers, chunk * plans.chunks - short)
    # Norms and the biases after row-parallel products are replicated over tensor ranks: 6 h, or 2 h without biases.
    whole = 2 * model.hidden if model.gated else 6 * model.hidden
    each = (model.layer_matrices + model.layer_vectors - whole) / plans.tp + whole
    norm = model.hidden * (1 if model.gated else 2)
    front, back = model.embedding / plans.tp + model.positions, model.embedding / plans.tp + norm
    both = front + norm + (0 if model.tied else model.embedding / plans.tp)
    ends = np.where((plans.pp == 1) | (plans.schedule == ZB_V), both, back if last else front)
    return layers * each, ends


def counts(job: Job, plans: Plans, last: bool) -> tuple[Floats, Floats]:
    """(parameters on a rank, those that are trained) before ZeRO; with adapters only these are trained."""
    each, ends = parameters(job, plans, last)
    if not job.adapters:
        return each + ends, each + ends
    adapters = each * job.trained
    return each + ends + adapters, adapters


def of(job: Job, plans: Plans) -> Memory:
    """Memory of the worse of the first and the last rank, for each plan."""
    first, last = _rank(job, plans, False), _rank(job, plans, True)
    worse = first.peak >= last.peak
    chosen = {f.name: np.where(worse, getattr(first, f.name), getattr(last, f.name)) for f in fields(Memory)}
    return Memory(**{**chosen, "first": worse})


def _rank(job: Job, plans: Plans, last: bool) -> Memory:
    count, learning = counts(job, plans, last)
    w, g, o = (plans.bytes_each(part) for part in ("weights", "gradients", "optimizer"))
    over = [np.where(plans.zero >= stage, plans.dp, 1.0) for stage in (3, 2, 1)]
    optimizer = learning * o / over[2]
    kept, passing = _activations(job, plans, last)
    passing = passing + np.where((plans.zero >= 3) & (plans.dp > 1), _gathered(job, plans, w, g), 0.0)
    return Memory(
        count * w / over[0] * _versions(job, plans, last),
        learning * g / over[1],
        np.where(plans.offload, 0.0, optimizer),
        kept,
        passing,
        np.where(plans.offload, optimizer, 0.0),
        np.full(len(plans), not last),
    )


def _versions(job: Job, plans: Plans, last: bool) -> Floats:
    """Weight versions a rank keeps: one for each micro-batch in flight with weight stashing (PipeDream, Narayanan et
    al. 2019, section 3.3), two for 2BW (Narayanan et al. 2021, section 3.1), else one."""
    stashed = activations.in_flight(job, plans, -1 if last else 0)
    kept = np.where(plans.schedule == STASH, stashed, np.where(plans.schedule == TWO_BW, 2.0, 1.0))
    return np.where(plans.pp == 1, 1.0, kept)


def _activations(job: Job, plans: Plans, last: bool) -> tuple[Floats, Floats]:
    """Bytes (kept from forward to backward, additional during one layer's backward)."""
    layer = activations.of_layer(job, plans)
    layers = layers_per_chunk(job, plans) * plans.chunks
    layers = np.where(plans.pp == 1, job.model.layers, layers)
    flight = activations.in_flight(job, plans, -1 if last else 0)
    kept = flight * layers * layer.kept
    alone = (plans.pp == 1) | (plans.schedule == ZB_V)
    kept = kept + np.where(alone | (not last), flight, 0) * activations.of_embedding(job, plans)
    kept = kept + np.where(alone | last, _of_head(job, plans, flight), 0.0)
    gradient = job.model.seq * plans.micro_batch * job.model.hidden * plans.element
    return kept, layer.rebuilt + 2 * gradient


def _of_head(job: Job, plans: Plans, flight: Floats) -> Floats:
    """Bytes of the output layer with `flight` micro-batches in flight on its rank. Its backward follows its forward at
    once, except in GPipe. ZB-H1 and ZB-H2 defer its W; ZB-V does not, on the rank that has it."""
    deferred = plans.split_backward & (plans.schedule != ZB_V)
    late = np.where(deferred, (flight - 1) * activations.deferred_head(job, plans), 0.0)
    return np.where(plans.schedule == GPIPE, flight, 1.0) * activations.of_head(job, plans) + late


def _gathered(job: Job, plans: Plans, weights: Floats, gradients: Floats) -> Floats:
    """ZeRO-3: bytes of two layers' gathered weights (current and next) and one layer's unsharded gradients."""
    return (job.model.layer_matrices + job.model.layer_vectors) / plans.tp * (2 * weights + gradients)
