"""What a rank takes while it generates text, before it starts; to be held against the meter's measured peak.

Weights are held once, without gradients; keys and values have room for the prompt and all that is generated from the
first token on (Pope et al. 2022, section 2.1). Nothing else is kept from layer to layer, so the rest peaks inside one
layer, while it works on all places of the prompt: attention has its input, queries, keys and values, what is turned by
RoPE, scores where it is plain, and their mix; an MLP its input and what is before and behind its activation.
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


def by_place(spec: RunSpec, wish: Mapping[str, Any]) -> list[RankMemory]:
    """Predicted peak of the first rank of each place of the pipeline, whose replica has most texts: weights under
    `params`, keys and values under `activations`, what a layer works with under `buffers`. `wish` is that of
    `parallel_core.generation_request`, of a GPT."""
    layout, size = Layout.of(spec), spec.element_bytes
    found = []
    for place in range(layout.pp):
        names = [spec.model.units()[unit] for unit in layout.stage_units[place]]
        layers = sum(name.endswith(".attn") for name in names)
        weights = flat_bytes(spec, place) // MAIN_BYTES[spec.train.precision] * size
        kept = layers * kept_elements(spec, wish) if wish["cached"] else 0
        at_work = size * _at_work(spec, wish, names) + 2 * _ID_BYTES * _texts(spec, wish) * len(wish["prompt"])
        found.append(RankMemory(layout.rank(place), place, weights, 0, 0, size * kept, at_work))
    return found


def kept_elements(spec: RunSpec, wish: Mapping[str, Any]) -> int:
    """Of keys and values of one attention layer on a rank."""
    outline = GptOutline(spec.model)
    places = _texts(spec, wish) * (len(wish["prompt"]) + wish["new"])
    return 2 * places * outline.kv_heads * outline.head_dim // spec.parallel.tp


def _texts(spec: RunSpec, wish: Mapping[str, Any]) -> int:
    """Of the first replica, which has most."""
    return len(texts_of(wish["samples"], spec.parallel.dp, 0))


def _at_work(spec: RunSpec, wish: Mapping[str, Any], names: list[str]) -> int:
    """Elements beside weights and caches at the worst instant of a pass over `names`."""
    places = len(wish["prompt"]) + (0 if wish["cached"] else wish["new"] - 1)
    texts = _texts(spec, wish)
    rows = texts * places
    of_kind = {"attn": _attention(spec, rows, places), "mlp": _mlp(spec, rows), "embed": 2 * rows * spec.model.hidden}
    logits = 2 * texts * spec.model.vocab + rows * spec.model.hidden
    return max(of_kind.get(name.rpartition(".")[2], logits) for name in names)


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
