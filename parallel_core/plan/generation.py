"""Predicted peak memory of a rank that generates text, to be compared with the meter's measurement.

Weights are held once, without gradients; the KV cache has room for the prompt and all generated tokens from the start
(Pope et al. 2022, section 2.1). Nothing else is kept from layer to layer, so the rest peaks inside one layer during the
prefill: attention has its input, queries, keys and values, the result of RoPE, scores if attention is plain, and its
output; an MLP its input and the tensors before and after its activation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_core.generation_request import texts_of
from parallel_core.layout import Layout
from parallel_core.outline.gpt import GptOutline
from parallel_core.outline.gpt_sizes import fused_attention
from parallel_core.plan.peak import RankMemory, flat_bytes
from parallel_core.spec import MAIN_BYTES, RunSpec

_ID_BYTES = 8
_DOUBLE_BYTES = 8


def by_place(spec: RunSpec, request: Mapping[str, Any]) -> list[RankMemory]:
    """Predicted peak of the first rank of each place of the pipeline, whose replica has the most texts.

    `params`: weights; `activations`: KV cache; `buffers`: temporaries of a layer. `request`: a request of
    `parallel_core.generation_request` for a GPT.
    """
    layout, size = Layout.of(spec), spec.element_bytes
    found = []
    for place in range(layout.pp):
        names = [spec.model.units()[unit] for unit in layout.stage_units[place]]
        layers = sum(name.endswith(".attn") for name in names)
        weights = flat_bytes(spec, place) // MAIN_BYTES[spec.train.precision] * size
        kept = layers * kept_elements(spec, request) if request["cached"] else 0
        at_work = _at_work(spec, request, names) + 2 * _ID_BYTES * _texts(spec, request) * len(request["prompt"])
        found.append(RankMemory(layout.rank(place), place, weights, 0, 0, size * kept, at_work))
    return found


def worst_place(spec: RunSpec, request: Mapping[str, Any]) -> RankMemory:
    """The one of `by_place` with the highest peak."""
    return max(by_place(spec, request), key=lambda place: place.total)


def kept_elements(spec: RunSpec, request: Mapping[str, Any]) -> int:
    """Elements of the KV cache of one attention layer on a rank."""
    outline = GptOutline(spec.model)
    places = _texts(spec, request) * (len(request["prompt"]) + request["new"])
    return 2 * places * outline.kv_heads * outline.head_dim // spec.parallel.tp


def _texts(spec: RunSpec, request: Mapping[str, Any]) -> int:
    """Texts of the first replica, which has the most."""
    return len(texts_of(request["samples"], spec.parallel.dp, 0))


def _at_work(spec: RunSpec, request: Mapping[str, Any], names: list[str]) -> int:
    """Bytes besides weights and caches at the peak of a pass over the layers `names`."""
    places, size = len(request["prompt"]) + (0 if request["cached"] else request["new"] - 1), spec.element_bytes
    rows = _texts(spec, request) * places
    of_kind = {"attn": _attention(spec, rows, places), "mlp": _mlp(spec, rows), "embed": 2 * rows * spec.model.hidden}
    drawn = _drawn(spec, request) + size * rows * spec.model.hidden
    known = {kind: size * elements for kind, elements in of_kind.items()}
    return max(known.get(name.rpartition(".")[2], drawn) for name in names)


def _drawn(spec: RunSpec, request: Mapping[str, Any]) -> int:
    """Bytes of the logits of each text and of what chooses its token (`engine.drawing`): sums of float64, of which a
    GPU holds those before the softmax; or for the likeliest one, nothing. Then the logits of the last token are there
    still, and of a tensor rank its own part of them, of several texts also turned over to be gathered."""
    texts, tp = _texts(spec, request), spec.parallel.tp
    tokens = texts * spec.model.vocab
    if request["temperature"]:
        doubles = 3 if spec.train.device == "cpu" else 2
        return tokens * (spec.element_bytes + doubles * _DOUBLE_BYTES)
    own = (2 if texts > 1 else 1) * tokens // tp if tp > 1 else 0
    return (2 * tokens + own) * spec.element_bytes


def _attention(spec: RunSpec, rows: int, places: int) -> int:
    model, outline, tp = spec.model, GptOutline(spec.model), spec.parallel.tp
    a, k, d = model.heads // tp, outline.kv_heads // tp, outline.head_dim
    turned, mixed = (rows * (a + k) * d if model.positions == "rope" else 0), rows * a * d
    scores = 0 if fused_attention(spec) else rows * a * places
    worst = max(turned, 2 * scores, scores + mixed, 2 * mixed)
    return rows * model.hidden + rows * (a + 2 * k) * d + turned + worst


def _mlp(spec: RunSpec, rows: int) -> int:
    width = GptOutline(spec.model).ffn // spec.parallel.tp
    return rows * (spec.model.hidden + width * (4 if spec.model.activation == "swiglu" else 2))
