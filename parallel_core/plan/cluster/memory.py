"""Bytes of the worst rank at four instants, for columns of plans.

Weights, gradients and optimizer state are bytes per parameter (`plans.STATES`) times the parameters of the rank,
divided by tensor and pipeline parallelism and, over replicas, by ZeRO 1 (optimizer), 2 (gradients too) and 3 (weights
too; Rajbhandari et al. 2020, section 5). Activations are in `activations`. The first rank holds the embedding and the
most micro-batches in flight, the last one the output layer and the logits; in a V schedule one rank holds both. Where
these two count as layers, an inner rank has more layers and may hold most.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from parallel_core.plan.cluster import activations
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import GPIPE, INTERLEAVED, STASH, TWO_BW, ZB_V, Bools, Floats, Ints, Plans

INSTANTS = ("built", "end of forward", "peak", "optimizer step")
FIRST, SECOND, LAST = 0, 1, -1
"""Pipeline ranks that may hold most; of the inner ones the second has most micro-batches in flight."""
PARTS = ("params", "grads", "optimizer", "activations", "buffers")
"""Parts of a rank's memory, named like the memory meter's categories."""


@dataclass(frozen=True)
class Memory:
    """Bytes of the worst rank at its peak, by part; `place`: FIRST, SECOND or LAST, whichever that is.

    `activations` are kept from forward to backward, `buffers` exist during one layer's backward or hold what ZeRO has
    of it unsharded.
    """

    params: Floats
    grads: Floats
    optimizer: Floats
    activations: Floats
    buffers: Floats
    host: Floats
    """Bytes that the rank keeps on the host: an offloaded optimizer."""
    place: Ints

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
    one layer less: embedding and output layer count as a layer each, as in Llama 3 (126 layers) and Qi et al. 2024a."""
    places = plans.pp * plans.chunks
    return np.ceil((job.model.layers + np.where(job.model.layers % places, 2, 0)) / places)


def divides(job: Job, plans: Plans) -> Bools:
    """Whether the layers divide over all chunks of each plan (see `even`)."""
    return np.asarray(even(job.model.layers, plans.pp * plans.chunks))


def even(layers: int, places: Any) -> Any:
    """Whether `layers` divide over `places` chunks (a number or an array), evenly or with embedding and output layer in
    place of two layers."""
    return (layers % places == 0) | ((layers > 2) & ((layers + 2) % places == 0))


def ends(plans: Plans, place: int) -> tuple[Bools, Bools]:
    """Whether the pipeline rank at this place has the embedding, and whether it has the output layer."""
    alone, outermost = plans.pp == 1, (place == LAST) | ((place == SECOND) & (plans.pp == 2))
    back = np.where(plans.schedule == ZB_V, place == FIRST, outermost)
    return alone | (place == FIRST), alone | back


def layers_of_rank(job: Job, plans: Plans, place: int) -> Floats:
    """Layers of the pipeline rank at this place: one less for each end that counts as a layer."""
    front, back = (_short(job, plans) & end for end in ends(plans, place))
    return np.where(plans.pp == 1, job.model.layers, layers_per_chunk(job, plans) * plans.chunks - front - back)


def _short(job: Job, plans: Plans) -> Bools:
    """Whether the first and the last chunk have a layer less than the others."""
    return (plans.pp > 1) & (job.model.layers % (plans.pp * plans.chunks) != 0)


def parameters(job: Job, plans: Plans, place: int) -> tuple[Floats, Floats]:
    """(parameters of the layers, of embedding and output layer) on the pipeline rank at this place, before ZeRO."""
    model, layers = job.model, layers_of_rank(job, plans, place)
    # Norms and the biases after row-parallel products are replicated over tensor ranks: 6 h, or 2 h without biases.
    whole = 2 * model.hidden if model.gated else 6 * model.hidden
    each = (model.layer_matrices + model.layer_vectors - whole) / plans.tp + whole
    table, norm = model.embedding / plans.tp, model.hidden * (1 if model.gated else 2)
    front, back = ends(plans, place)
    own = front * (table + model.positions) + back * (table + norm) - (front & back & model.tied) * table
    return layers * each, own


def counts(job: Job, plans: Plans, place: int) -> tuple[Floats, Floats]:
    """(parameters on a rank, those that are trained) before ZeRO; with adapters only these are trained."""
    each, own = parameters(job, plans, place)
    if not job.adapters:
        return each + own, each + own
    adapters = each * job.trained
    return each + own + adapters, adapters


def of(job: Job, plans: Plans) -> Memory:
    """Memory of the worst rank, for each plan."""
    found = _worse(_rank(job, plans, FIRST), _rank(job, plans, LAST), np.arange(len(plans)))
    # Where the layers divide, the first rank holds more than the second; in a V schedule all inner ones are alike.
    inner = np.flatnonzero(_short(job, plans) & (plans.pp > 2) & (plans.schedule != ZB_V))
    return _worse(found, _rank(job, plans.take(inner), SECOND), inner)


def _worse(one: Memory, other: Memory, where: Ints) -> Memory:
    """`one`, with those of `other`, which has the plans at `where` alone, that need more."""
    larger = other.peak > one.peak[where]
    columns = {f.name: getattr(one, f.name).copy() for f in fields(Memory)}
    for name, column in columns.items():
        column[where[larger]] = getattr(other, name)[larger]
    return Memory(**columns)


def _rank(job: Job, plans: Plans, place: int) -> Memory:
    count, learning = counts(job, plans, place)
    w, g, o = (plans.bytes_each(part) for part in ("weights", "gradients", "optimizer"))
    over = [np.where(plans.zero >= stage, plans.dp, 1.0) for stage in (3, 2, 1)]
    optimizer = learning * o / over[2]
    kept, rebuilt, gradients = _activations(job, plans, place)
    layer, head = _unsharded(job, plans, place)
    return Memory(
        count * w / over[0] * _versions(job, plans, place),
        learning * g / over[1],
        np.where(plans.offload, 0.0, optimizer),
        kept,
        gradients + np.maximum(rebuilt + layer, head),
        np.where(plans.offload, optimizer, 0.0),
        np.full(len(plans), place),
    )


def _versions(job: Job, plans: Plans, place: int) -> Floats:
    """Weight versions a rank keeps: one for each micro-batch in flight with weight stashing (PipeDream, Narayanan et
    al. 2019, section 3.3), two for 2BW (Narayanan et al. 2021a, section 3.1), else one."""
    stashed = activations.in_flight(job, plans, place)
    kept = np.where(plans.schedule == STASH, stashed, np.where(plans.schedule == TWO_BW, 2.0, 1.0))
    return np.where(plans.pp == 1, 1.0, kept)


def _activations(job: Job, plans: Plans, place: int) -> tuple[Floats, Floats, Floats]:
    """Bytes (kept from forward to backward, rebuilt for one layer's backward, gradients of its input and output)."""
    layer, (front, back) = activations.of_layer(job, plans), ends(plans, place)
    flight = activations.in_flight(job, plans, place)
    kept = _layers_in_flight(job, plans, place, flight) * layer.kept
    kept = kept + np.where(front, flight, 0) * activations.of_embedding(job, plans)
    kept = kept + np.where(back, _of_head(job, plans, flight), 0.0)
    gradient = job.model.seq * plans.micro_batch * job.model.hidden * plans.element
    return kept, layer.rebuilt, 2 * gradient


def _layers_in_flight(job: Job, plans: Plans, place: int, flight: Floats) -> Floats:
    """Most layers whose activations are kept at once, each counted for every micro-batch that it is kept for. Where the
    last chunk of several has a layer less, most are kept without it, for its backward follows its forward."""
    layers = layers_of_rank(job, plans, place)
    looped = _short(job, plans) & ends(plans, place)[1] & (plans.schedule == INTERLEAVED) & (plans.chunks > 1)
    return flight * np.where(looped, layers + 1, layers)


def _of_head(job: Job, plans: Plans, flight: Floats) -> Floats:
    """Bytes of the output layer with `flight` micro-batches in flight on its rank. Its backward follows its forward at
    once, except in GPipe. ZB-H1 and ZB-H2 defer its W; ZB-V does not, on the rank that has it."""
    deferred = plans.split_backward & (plans.schedule != ZB_V)
    late = np.where(deferred, (flight - 1) * activations.deferred_head(job, plans), 0.0)
    return np.where(plans.schedule == GPIPE, flight, 1.0) * activations.of_head(job, plans) + late


def _unsharded(job: Job, plans: Plans, place: int) -> tuple[Floats, Floats]:
    """Bytes that a rank has unsharded while (a layer, its output layer) runs backward: with ZeRO-2 and 3 its gradients,
    until they are scattered; with ZeRO-3 also its gathered weights, and those of the layer that runs next."""
    parts = ((3, "weights"), (2, "sent"))
    w, g = (np.where((plans.zero >= least) & (plans.dp > 1), plans.bytes_each(part), 0.0) for least, part in parts)
    layer = (job.model.layer_matrices + job.model.layer_vectors) / plans.tp
    head = job.model.embedding / plans.tp * (w + (0.0 if job.adapters else g)) + layer * w
    return layer * (2 * w + job.trained * g), np.where(ends(plans, place)[1], head, 0.0)
