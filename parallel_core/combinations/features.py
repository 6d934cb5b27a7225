"""The features of a run that the page of combinations lists, by subject.

A feature is a set of leaves: dotted fields of RunSpec, and words of what is done with the run besides training:

    inject.<kind>    a fault, with its fields
    use.ranks        the run needs so many ranks: replicas, where nothing else splits it
    use.hosts        its ranks are on so many hosts
    use.resume       it is resumed, under the "same" layout or under "another" one
    use.imported     it starts from safetensors weights of a Llama
    use.exported     its last checkpoint is written as such weights
    text.<field>     its last checkpoint generates text: dp, tp, pp, or a field of TextRequest
"""

from __future__ import annotations

import hashlib
import typing
from typing import Any

from parallel_core.schedule.custom import EXAMPLE
from parallel_core.schedule.traits import CUSTOM, ScheduleName, flushes

Leaves = dict[str, Any]
"""Dotted field -> value."""

BASE: Leaves = {
    "model.kind": "gpt",
    "train.global_batch": 16,
    "train.steps": 5,
    "train.warmup_steps": 1,
    "train.precision": "fp64",
    "train.lr": 1e-3,
}
GPT: Leaves = {"model.layers": 4, "model.hidden": 32, "model.heads": 4, "model.seq": 16, "model.vocab": 64}
KINDS: dict[str, Leaves] = {
    "gpt": GPT,
    "mlp": {"model.layers": 4, "model.hidden": 32},
    "vgg16": {"model.width": 2},
    "resnet50": {"model.width": 2},
    "gnmt": {"model.layers": 4, "model.hidden": 16, "model.seq": 8, "model.vocab": 64},
}
"""Kind of model -> small sizes of it."""
LLAMA: Leaves = {
    "model.positions": "rope",
    "model.activation": "swiglu",
    "model.norm": "rmsnorm",
    "model.bias": False,
    "model.kv_heads": 2,
    "model.ffn": 96,
}
"""What makes a GPT a Llama, with the sizes that its config.json names."""
UPLOADED_TEXT = b"def double(x):\n    return 2 * x\n\n\n" * 64
"""The text of `blob:` runs."""
TOKEN_FILE = "tokens:small"
SAVING: Leaves = {"train.checkpoint_every": 1}
RANKS: Leaves = {"use.ranks": 2}
PIPELINE: Leaves = {"parallel.pp": 2, "parallel.micro_batches": 4}
TEXT: Leaves = {**SAVING, "train.lr": 5e-5}
"""Of runs that generate text. A higher learning rate teaches them in the first steps to repeat the commonest token, and
then all positions would have the same one."""


def _schedule(name: ScheduleName) -> Leaves:
    leaves: Leaves = {**PIPELINE, "parallel.schedule": name}
    return leaves if flushes(name) else {**leaves, "train.clip": "stage"}


SUBJECTS: dict[str, dict[str, Leaves]] = {
    "Replicas and tensor ranks": {
        "data parallel": {"parallel.dp": 2},
        "ZeRO-1": {"parallel.dp": 2, "parallel.zero": 1},
        "ZeRO-2": {"parallel.dp": 2, "parallel.zero": 2},
        "ZeRO-3": {"parallel.dp": 2, "parallel.zero": 3},
        "fully_shard": {"parallel.dp": 2, "parallel.zero": 3, "parallel.zero_backend": "fully_shard"},
        "tensor parallel": {"parallel.tp": 2},
        "tensor split by columns": {"parallel.tp": 2, "parallel.tensor_split": "columns"},
        "sequence parallel": {"parallel.tp": 2, "parallel.sequence": True},
        "several hosts": {**RANKS, "use.hosts": 2},
    },
    "Pipelines": {
        **{f"pipeline {name}": _schedule(name) for name in typing.get_args(ScheduleName) if name != CUSTOM},
        "own schedule": {**_schedule(CUSTOM), "parallel.program": EXAMPLE},
        "early gradients": {**PIPELINE, "parallel.early_gradients": True},
        "replicas 2-1": {**PIPELINE, "parallel.replicas": [2, 1]},
        "tensor ranks 1-2": {**PIPELINE, "parallel.widths": [1, 2]},
    },
    "Memory and numbers": {
        "full recomputation": {"parallel.recompute": "full"},
        "selective recomputation": {"parallel.recompute": "selective"},
        "recomputation of some layers": {"parallel.recompute": "full", "parallel.recompute_layers": [0]},
        "fp32": {"train.precision": "fp32"},
        "bf16": {"train.precision": "bf16"},
        "fp16": {"train.precision": "fp16"},
        "deterministic": {"train.deterministic": True},
        "clipping by stage": {**PIPELINE, "train.clip": "stage"},
        "no clipping": {"train.clip_norm": None},
        "SGD": {"train.optimizer": "sgd"},
    },
    "Models and data": {
        "tied embeddings": {"model.tied": True},
        "dropout": {"model.dropout": 0.1},
        "shared key heads": {"model.kv_heads": 2},
        "RoPE": {"model.positions": "rope"},
        "SwiGLU": {"model.activation": "swiglu"},
        "RMSNorm": {"model.norm": "rmsnorm"},
        "no biases": {"model.bias": False},
        "plain attention": {"model.attention": "plain"},
        **{f"model {kind}": {"model.kind": kind} for kind in KINDS if kind != "gpt"},
        "uploaded text": {"train.corpus": f"blob:{hashlib.sha256(UPLOADED_TEXT).hexdigest()}"},
        "token file": {"train.corpus": TOKEN_FILE},
    },
    "Checkpoints and weights": {
        "checkpoints": {**SAVING, "train.keep": 1},
        "resumed": {**SAVING, "use.resume": "same"},
        "resumed on another layout": {**SAVING, **RANKS, "use.resume": "another"},
        "weights from safetensors": {**LLAMA, "use.imported": True},
        "weights to safetensors": {**LLAMA, **SAVING, "use.exported": True},
    },
    "Observation": {
        "fingerprints": {"parallel.dp": 2, "trace.fingerprint_every": 1},
        "torch.profiler": {"trace.profile_steps": [1]},
        "memory cap": {"trace.memory_cap": 1 << 30},
        "time limit": {"train.max_minutes": 30},
        "going on after NaN": {"train.stop_on_nan": False},
        "held-out loss": {"train.eval_every": 5, "train.eval_samples": 6},
    },
    "Injected faults": {
        "straggler": {"inject.straggler": {"factor": 1.5}},
        "slow link": {**PIPELINE, "inject.slow_link": {"ms": 1}},
        "slow replicas": {"parallel.dp": 2, "inject.slow_group": {"axis": "data", "ms": 1}},
        "slow tensor ranks": {"parallel.tp": 2, "inject.slow_group": {"axis": "tensor", "ms": 1}},
        "unbalanced cut": {**PIPELINE, "inject.unbalanced_cut": {"units": 1}},
        "slow data": {"inject.slow_data": {"ms": 1}},
        "tiny kernels": {"inject.tiny_kernels": {"count": 20}},
        "memory hog": {"inject.memory_hog": {"mib": 1}},
        "learning rate too high": {"inject.high_lr": {"factor": 10}},
        "loss scale too high": {"train.precision": "fp16", "inject.high_scale": {"scale": 2.0**40}},
        "flipped bit": {"parallel.dp": 2, "trace.fingerprint_every": 1, "inject.flipped_bit": {"rank": 1, "step": 1}},
    },
    "Text generation": {
        "text on tensor ranks": {**TEXT, "text.tp": 2},
        "text on stages": {**TEXT, "text.pp": 2},
        "text on replicas": {**TEXT, "text.dp": 2},
        "text without a cache": {**TEXT, "text.cached": False},
        "text of the likeliest tokens": {**TEXT, "text.temperature": 0.0},
        "text from the top 8": {**TEXT, "text.top_k": 8},
    },
}
"""Subject -> feature -> the fields that it consists of, including those that it requires."""
FEATURES: dict[str, Leaves] = {name: leaves for features in SUBJECTS.values() for name, leaves in features.items()}
