"""Chooses how the gradients of a rank are reduced over its replicas, by the ZeRO stage."""

from __future__ import annotations

from collections import Counter

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.collectives import Group
from parallel_core.engine.fully_sharded import FullySharded, FullyShardedReducer
from parallel_core.engine.reduction import GradientReducer, Reducer
from parallel_core.engine.zero2 import Zero2Reducer
from parallel_core.engine.zero3 import Unsharder
from parallel_core.observe.scope import Scope
from parallel_core.plan.grad_buckets import gathers_ahead
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec


def reducer_of(
    spec: RunSpec, chunks: Chunks, group: Group, scope: Scope, micro_batches: int, delay: float = 0.0
) -> Reducer:
    """Returns the reducer of a rank. `micro_batches`: those of the rank in a step; each collective is delayed by
    `delay` seconds."""
    if isinstance(chunks.flat, FullySharded):
        torchs = FullyShardedReducer(chunks.flat, chunks.weights, scope, delay, spec.parallel.recompute == "full")
        chunks.unshard_by(torchs)
        return torchs
    if chunks.flat.shard_grads:
        unsharder = _unsharder(spec, chunks, group, scope, delay) if chunks.flat.shard_values else None
        chunks.unshard_by(unsharder)
        return Zero2Reducer(chunks, group, scope, delay, unsharder)
    together = micro_batches if TRAITS[spec.parallel.schedule].sync in ("flush", "2bw") else 1
    arrivals = Counter({slot: n * together for slot, n in chunks.arrivals().items()})
    reducer = GradientReducer(chunks.flat, arrivals, group, scope, delay)
    if group is not None:
        chunks.weights.listener = reducer.arrived
    return reducer


def _unsharder(spec: RunSpec, chunks: Chunks, group: Group, scope: Scope, delay: float) -> Unsharder:
    layers = [layer for stage in chunks.stages.values() for layer in stage.layers]
    return Unsharder(chunks.flat, group, scope, delay, layers if gathers_ahead(spec) else ())
