"""Inference instead of training: latency, throughput and KV cache at the roofline.

A prompt is read in one pass (prefill), then tokens come out one at a time (decode). Weights and attention apart, each
takes the longer of its FLOPs at the device's peak and its bytes at the memory's bandwidth (Williams et al. 2009);
tensor parallelism adds two all-reduces a layer (Shoeybi et al. 2019, section 3). Decoding reads all weights for each
token, so memory bandwidth limits its speed (Pope et al. 2022, section 2). Software overhead is not counted: these are
bounds that no implementation beats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.pareto import pareto_front
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.model import Transformer
from parallel_core.plan.cluster.problems import Problems, require
from parallel_core.rules import divisors

ELEMENT = 2
"""Bytes of a weight, an activation, a key or a value: 16 bits."""
MOST_TOKENS = 1 << 22
MOST_BATCH = 1 << 14
Floats = NDArray[np.float64]


NEARLY = 0.95
"""The share of the best rate from which on a way counts as nearly as good."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Tokens of each prompt, and tokens generated after it."""

    prompt: int
    output: int

    def problems(self) -> dict[str, str]:
        """`{field: message}` for impossible values."""
        found = Problems()
        found.whole("prompt", self.prompt, 1, MOST_TOKENS)
        found.whole("output", self.output, 1, MOST_TOKENS)
        return found.messages


def cache_bytes(model: Transformer, tokens: int = 1) -> int:
    """Bytes of keys and values of `tokens` tokens of one sequence, over all layers: 2 L w b bytes a token with L layers
    of width w (Kwon et al. 2023, section 3: 800 KB a token for OPT-13B)."""
    return 2 * model.layers * model.kv_width * ELEMENT * tokens


@dataclass(frozen=True)
class Served:
    """Arrays with one entry for each way to serve: `replicas` of tp x pp devices, each with `batch` sequences at once.

    `prefill`: seconds for the prompts of a whole batch; `token`: seconds for one token of each sequence; `weights` and
    `cache` in bytes of the fullest device. Devices of `cluster` left over after the last full replica stay idle.
    """

    cluster: Cluster
    ask: Ask
    tp: Floats
    pp: Floats
    replicas: Floats
    batch: Floats
    prefill: Floats
    token: Floats
    weights: Floats
    cache: Floats

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Mask of the ways whose weights and cache fit a device."""
        return np.asarray(self.weights + self.cache <= self.cluster.capacity)

    @property
    def latency(self) -> Floats:
        """Seconds from a prompt to its last token."""
        return self.prefill + (self.ask.output - 1) * self.token

    @property
    def throughput(self) -> Floats:
        """Output tokens per second of all replicas."""
        return self.replicas * self.batch * self.ask.output / self.latency

    def best(self, most: float | None = None) -> int | None:
        """Index of the way with most tokens per second and at most `most` seconds a token; None where none fits."""
        able = self.fits if most is None else self.fits & (self.token <= most)
        return int(np.argmax(np.where(able, self.throughput, -1.0))) if able.any() else None

    def nearly(self, best: int) -> int | None:
        """The way with the quickest token of those that reach NEARLY the rate of `best`; None unless that takes a fifth
        less time. The last percents of a rate can double the time of a token: batches grow, weights are read as often.
        """
        able = self.fits & (self.throughput >= NEARLY * self.throughput[best])
        quick = int(np.argmin(np.where(able, self.token, np.inf)))
        return quick if self.token[quick] <= 0.8 * self.token[best] else None

    def front(self) -> list[int]:
        """Pareto front of the ways that fit, over seconds a token and tokens per second; quickest token first."""
        token, rate = self.token, self.throughput
        return pareto_front(np.flatnonzero(self.fits).tolist(), lambda i: (token[i], -rate[i]))

    def label(self, i: int) -> str:
        """`4 replicas of TP 8 x PP 2, 64 sequences each`."""
        axes = [f"{name} {int(n)}" for name, n in (("TP", self.tp[i]), ("PP", self.pp[i])) if n > 1]
        shape, count, batch = " x ".join(axes) or "one device", int(self.replicas[i]), int(self.batch[i])
        many, each = (f"{count} replicas of ", " each") if count > 1 else ("", "")
        return f"{many}{shape}, {batch} sequence{'s' if batch > 1 else ''}{each}"


def serve(model: Transformer, cluster: Cluster, ask: Ask) -> Served:
    """All ways with tp and pp that divide the model, with batches of one sequence, or of 1, 2, 4, ... for each stage.
    Raises Unphysical."""
    require({**model.problems(), **cluster.problems(), **ask.problems()})
    shapes = [
        (t, p)
        for t in model.tensor_widths
        if t <= min(cluster.per_host, cluster.devices)
        for p in divisors(model.layers)
        if t * p <= cluster.devices
    ]
    grid = np.array([(t, p, b) for t, p in shapes for b in _batches(p)], float)
    t, p, b = grid.T
    parts = np.minimum(b, 4 * p)  # prompts pass the stages one after another, like micro-batches
    whole = _pass(model, cluster, (t, p), b * ask.prompt, b, ask.prompt / 2)
    prefill = whole * (p + parts - 1) / (p * parts)
    group = np.maximum(1.0, b / p)  # each stage works on a different part of the batch
    token = _pass(model, cluster, (t, p), group, group, ask.prompt + ask.output / 2, reads=True)
    weights = ELEMENT * _parameters(model, p) / t
    cache = b * cache_bytes(model, ask.prompt + ask.output) / p / np.minimum(t, model.kv_heads)
    return Served(cluster, ask, t, p, cluster.devices // (t * p), b, prefill, token, weights, cache)


def _parameters(model: Transformer, stages: Floats) -> Floats:
    """Parameters of the fullest of so many stages, the first: as many layers as any other, and the embedding."""
    layers = model.layers * (model.layer_matrices + model.layer_vectors)
    return np.where(stages > 1, layers / stages + model.embedding + model.positions, float(model.parameters))


def _batches(stages: int) -> list[int]:
    """Sequences at once: one, or equal parts for all stages."""
    return sorted({1, *(stages << i for i in range((MOST_BATCH // stages).bit_length()))})


def _pass(
    model: Transformer,
    cluster: Cluster,
    shape: tuple[Floats, Floats],
    tokens: Floats,
    sequences: Floats,
    context: float,
    reads: bool = False,
) -> Floats:
    """Seconds of `tokens` tokens through all stages, one stage after the other, each token attending to `context`
    others; `reads`: the keys and values of `sequences` sequences are read from the cache. The output layer computes the
    last token of each sequence."""
    t, p = shape
    device = cluster.device
    layers, head = model.layers * model.layer_matrices, model.embedding
    products = 2 * (layers * tokens + head * sequences) / device.half
    weights = np.maximum(products, ELEMENT * (layers + head) / device.bandwidth) / t
    flops = 4 * model.layers * model.hidden * context * tokens / t / device.half
    kept = cache_bytes(model) * context * sequences / np.minimum(t, model.kv_heads) if reads else 0.0 * t
    attention = np.maximum(flops, kept / device.bandwidth)
    size = ELEMENT * tokens * model.hidden
    inside = cluster.fewest_in_host(t, np.ones_like(t), t * p * (cluster.devices // (t * p)))
    link = np.where(inside >= t, cluster.link, np.minimum(cluster.link, cluster.network * inside))
    sums = 2 * model.layers * 2 * (t - 1) / t * size / link
    far = cluster.hops_between_hosts(t, p)
    hops = size * ((p - 1 - far) / cluster.link + far / cluster.network)
    return np.asarray(weights + attention + sums + hops)
