"""The names of a spec's fields, and which one a name that is none of them was probably meant to be."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel

_LONGEST = 40
"""Characters of a name above which no field is proposed for it."""
_SIMILAR, _NEARLY = 0.6, 0.8
"""Likeness (`difflib`'s ratio, 0 to 1) from which a field of the same section, and of another one, is proposed."""
_ELSEWHERE = {
    "lr": ("learning_rate",),
    "global_batch": ("batch_size", "global_batch_size", "train_batch_size"),
    "micro_batches": ("num_microbatches", "microbatches", "gradient_accumulation_steps", "accumulation_steps"),
    "steps": ("max_steps", "train_iters", "iterations"),
    "clip_norm": ("clip_grad", "grad_clip", "gradient_clipping", "max_grad_norm"),
    "precision": ("dtype", "torch_dtype"),
    "layers": ("num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth"),
    "hidden": ("hidden_size", "d_model", "n_embd", "dim"),
    "heads": ("num_heads", "n_heads", "n_head", "num_attention_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "num_query_groups"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "d_ff"),
    "seq": ("seq_len", "seq_length", "sequence_length", "block_size", "max_position_embeddings"),
    "vocab": ("vocab_size",),
    "dp": ("data_parallel", "data_parallel_size"),
    "tp": ("tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size"),
    "pp": ("pipeline_parallel", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "recompute": ("activation_checkpointing", "gradient_checkpointing"),
}
"""Field -> what other tools call it."""
_OURS = {theirs: ours for ours, every in _ELSEWHERE.items() for theirs in every}


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Section of a spec -> its class; "" is the spec itself."""
    inner = {name: info.annotation for name, info in model.model_fields.items()}
    return {"": model} | {
        name: kind for name, kind in inner.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def likely(model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    """Returns the dotted name of the field that the unknown one at `loc` was probably meant to be: what another tool
    calls so, one of the same section with a similar name, or one of another section with nearly the same; "" where
    there is none."""
    *path, wrong = map(str, loc)
    section, known = ".".join(path), sections(model)
    if section not in known or len(wrong) > _LONGEST:
        return ""
    own = dict.fromkeys(known[section].model_fields, section)
    others = {name: other for other, kind in known.items() if other != section for name in kind.model_fields}
    for names in (own, others):
        if (ours := _OURS.get(wrong.lower())) in names:
            return _dotted(names[ours], ours)
    for names, least in ((own, _NEARLY), (others, _NEARLY), (own, _SIMILAR)):
        if near := difflib.get_close_matches(wrong.lower(), names, 1, least):
            return _dotted(names[near[0]], near[0])
    return ""


def _dotted(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
