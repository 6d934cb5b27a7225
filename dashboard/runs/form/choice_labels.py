"""Labels of the values of the spec's choices, as forms show them."""

from __future__ import annotations

from parallel_core.outline import KINDS
from parallel_core.schedule.traits import TRAITS

CORPUS_LABELS = {
    "stdlib": "Python standard library (built in)",
    "digits": "Handwritten digits (built in)",
    "django": "Sentences of Django's catalogues (built in)",
}
"""Labels of the corpora that are part of an installation."""

CHOICE_LABELS = {
    **{name: traits.label.removeprefix("PP-") for name, traits in TRAITS.items()},
    "0": "0: every replica holds all",
    "1": "1: replicas share the optimizer's state",
    "2": "2: and keep their part of the gradients alone",
    "3": "3: and gather each layer's parameters while it works",
    "own": "Trainyard: one gather a layer into one buffer",
    "fully_shard": "PyTorch's fully_shard (FSDP2)",
    "pairs": "Pairs: columns, then rows",
    "columns": "Columns, gathered",
    "none": "None: keep activations",
    "selective": "Selective: recompute attention cores",
    "full": "Full: recompute blocks",
    "fused": "Fused: no s × s matrix",
    "plain": "Plain: keeps the s × s matrix",
    "data": "Data-parallel replicas",
    "tensor": "Tensor-parallel ranks",
    "constant": "Constant",
    "linear": "Falls along a line",
    "cosine": "Falls as a cosine",
    "adamw": "AdamW",
    "sgd": "SGD",
    "global": "Of all gradients",
    "stage": "Of each stage on its own",
    "cpu": "CPU",
    "cuda": "CUDA GPU",
    "fp32": "fp32",
    "fp64": "fp64",
    **{kind: outline.name for kind, outline in KINDS.items()},
    "gnmt": "GNMT on Django's sentences",
    "learned": "Learned",
    "rope": "RoPE",
    "gelu": "GELU",
    "swiglu": "SwiGLU",
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "bf16": "bf16, fp32 master weights",
    "fp16": "fp16, fp32 master weights, loss scaling",
}
