"""Imports and exports Llama weights (Touvron et al. 2023) in the safetensors layout of Hugging Face.

Their layout has separate tensors for queries, keys and values, and for gate and up; this engine interleaves them by
group and by pair (see models.gpt). In both, RoPE rotates the pairs (i, i + dim / 2) of a head. Values are only
rearranged, so importing an export gives the same bits. One tensor at a time is in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from parallel_core.atomic_file import whole_file
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import safetensors
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, read
from parallel_core.engine import storage
from parallel_core.engine.shares import Box, ComputedShare, Share
from parallel_core.llama_models import no_llama
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec, RunSpec, field_errors
from parallel_core.untrusted import PARSE_ERRORS

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
CONFIG = "config.json"
EPS = 1e-5
"""Epsilon of this engine's RMSNorm."""
BYTES = 256
"""Size of the vocabulary in which each byte is a token."""
OWN_TOKENS = "own"
"""Name of the token file in the spec of a model with any other vocabulary: the user has to pack it first."""

_ABLE: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1, None),
    "rms_norm_eps": (EPS,),
}
"""Field of config.json -> the values that this engine supports."""
_ROPE_FIELDS = ("rope_parameters", "rope_scaling")
"""Fields with RoPE's settings: transformers 5 writes the first, which includes the base, earlier ones the second."""
_ROPE_ABLE: dict[str, tuple[Any, ...]] = {
    "rope_type": ("default",),
    "type": ("default",),
    "partial_rotary_factor": (1, None),
}
"""Key in these fields -> the supported values; the first is the default."""
_OLDEST_ROPE_BASE = 10_000.0
"""Base of the first Llamas, whose config.json has none."""

Get = Callable[[str], Tensor]
"""Returns the full tensor of a name."""


def model_of(config: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """The fields of ModelSpec from a config.json, for sequences of `seq` tokens. Raises CheckpointError if this engine
    does not support the model."""
    for key, able in _ABLE.items():
        if config.get(key) not in able:
            raise CheckpointError(f"{CONFIG} has {key}={config.get(key)!r}; this engine has {able[0]!r}.")
    try:
        model = {
            "layers": config["num_hidden_layers"],
            "hidden": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "kv_heads": config.get("num_key_value_heads"),
            "ffn": config["intermediate_size"],
            "vocab": config["vocab_size"],
            "tied": bool(config.get("tie_word_embeddings", False)),
            "rope_base": _rope_base(config),
        }
        head = config.get("head_dim") or model["hidden"] // model["heads"]
        fits = head * model["heads"] == model["hidden"]
    except KeyError as error:
        raise CheckpointError(f"{CONFIG} lacks {error}.") from error
    except (*PARSE_ERRORS, ZeroDivisionError) as error:
        raise CheckpointError(f"{CONFIG} has a size that is no number of a model ({error}).") from error
    if not fits:
        raise CheckpointError(f"{CONFIG} has head_dim={head}; this engine's is hidden_size / num_attention_heads.")
    llama = {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
    return {**model, **llama, "kind": "gpt", "seq": seq}


def _rope_base(config: Mapping[str, Any]) -> float:
    """The base of RoPE's angles from any of the fields that may have it. Raises CheckpointError if RoPE is scaled, or
    the fields contradict each other."""
    bases = {"rope_theta": config.get("rope_theta")}
    for field in _ROPE_FIELDS:
        rope = {} if config.get(field) is None else config[field]
        if not isinstance(rope, dict):
            raise CheckpointError(f"{CONFIG} has {field}={rope!r}; it must be null or an object with named fields.")
        for key, able in _ROPE_ABLE.items():
            if rope.get(key, able[0]) not in able:
                raise CheckpointError(f"{CONFIG} has {field}.{key}={rope[key]!r}; this engine has {able[0]!r}.")
        bases[f"{field}.rope_theta"] = rope.get("rope_theta")
    known = {field: _number(field, base) for field, base in bases.items() if base is not None}
    if len(set(known.values())) > 1:
        said = " and ".join(f"{field}={base:g}" for field, base in known.items())
        raise CheckpointError(f"{CONFIG} has {said}; they must be the same base.")
    if not known and config.get("rope_parameters") is not None:
        raise CheckpointError(f"{CONFIG} has rope_parameters without rope_theta; it must hold the base of the angles.")
    return next(iter(known.values()), _OLDEST_ROPE_BASE)


def _number(field: str, value: Any) -> float:
    try:
        return float(value)
    except PARSE_ERRORS as error:
        raise CheckpointError(f"{CONFIG} has {field}={value!r}; it must be a number.") from error


def config_of(model: ModelSpec) -> dict[str, Any]:
    """The config.json of a model. Raises CheckpointError if it is not a Llama."""
    if wrong := no_llama(model):
        raise CheckpointError(f"Only a Llama can be exported: the checkpoint has {wrong}.")
    outline = GptOutline(model)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": outline.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": outline.kv_heads,
        "max_position_embeddings": model.seq,
        "vocab_size": model.vocab,
        "rms_norm_eps": EPS,
        "rope_theta": model.rope_base,
        "tie_word_embeddings": model.tied,
    }


def ours(model: ModelSpec, name: str, get: Get) -> Tensor:
    """This engine's parameter `name` from Hugging Face's tensors."""
    unit, layer, _ = name.rsplit(".", 2)
    if unit == "embed":
        return get("model.embed_tokens.weight")
    if unit == "head":
        return get("model.norm.weight" if layer == "norm" else "lm_head.weight")
    their = f"model.layers.{unit.split('.')[1]}"
    if layer == "qkv":
        q, k, v = (get(f"{their}.self_attn.{part}_proj.weight") for part in "qkv")
        kv = GptOutline(model).kv_heads
        return torch.cat([part.view(kv, -1, model.hidden) for part in (q, k, v)], 1).flatten(0, 1)
    if layer == "fc1":
        return torch.stack([get(f"{their}.mlp.{part}_proj.weight") for part in ("gate", "up")], 1).flatten(0, 1)
    return get(f"{their}.{_SAME[unit.rsplit('.', 1)[1], layer]}.weight")


_SAME = {
    ("attn", "norm"): "input_layernorm",
    ("attn", "proj"): "self_attn.o_proj",
    ("mlp", "norm"): "post_attention_layernorm",
    ("mlp", "fc2"): "mlp.down_proj",
}


def theirs(model: ModelSpec, get: Get) -> Iterator[tuple[str, Tensor]]:
    """Yields Hugging Face's tensors (name, tensor) from this engine's parameters, in layer order."""
    kv, dim = GptOutline(model).kv_heads, GptOutline(model).head_dim
    yield "model.embed_tokens.weight", get("embed.token.weight")
    for i in range(model.layers):
        their, attn, mlp = f"model.layers.{i}", f"block.{i}.attn", f"block.{i}.mlp"
        yield f"{their}.input_layernorm.weight", get(f"{attn}.norm.weight")
        groups = get(f"{attn}.qkv.weight").view(kv, -1, model.hidden)
        for part, rows in zip("qkv", groups.split([groups.shape[1] - 2 * dim, dim, dim], 1), strict=True):
            yield f"{their}.self_attn.{part}_proj.weight", rows.flatten(0, 1)
        yield f"{their}.self_attn.o_proj.weight", get(f"{attn}.proj.weight")
        yield f"{their}.post_attention_layernorm.weight", get(f"{mlp}.norm.weight")
        pairs = get(f"{mlp}.fc1.weight").view(-1, 2, model.hidden)
        yield f"{their}.mlp.gate_proj.weight", pairs[:, 0]
        yield f"{their}.mlp.up_proj.weight", pairs[:, 1]
        yield f"{their}.mlp.down_proj.weight", get(f"{mlp}.fc2.weight")
    yield "model.norm.weight", get("head.norm.weight")
    if not model.tied:
        yield "lm_head.weight", get("head.output.weight")


def import_weights(path: Path, out: Path, seq: int) -> tuple[RunSpec, Manifest]:
    """Writes a checkpoint of step 0 to the folder `out` from a folder of Llama weights; any layout can start from it.

    Raises CheckpointError if the weights are damaged, incomplete, or of no Llama of this engine, or writing fails.
    """
    spec = _spec(_config(path), seq)
    files = safetensors.open_all(path)

    def shape(name: str) -> Tensor:
        if name not in files:
            raise CheckpointError(f"{path} has no {name}.")
        entry = files[name].entries[name]
        if entry.dtype not in TYPES:
            raise CheckpointError(f"{path} holds {name} as {entry.dtype}; weights are {', '.join(TYPES)}.")
        return torch.empty(entry.shape, dtype=TYPES[entry.dtype], device="meta")

    def get(name: str) -> Tensor:
        like, data = shape(name), bytearray(files[name].data(name))
        return (torch.frombuffer(data, dtype=like.dtype) if data else torch.empty(0, dtype=like.dtype)).view(like.shape)

    made: dict[str, Share] = {}
    for name, full in parameter_shapes(spec.model).items():
        dtype = _of_shape(spec.model, name, full, shape).dtype  # the widest of the tensors that it is combined from
        made[f"value/{name}"] = ComputedShare(full, dtype, partial(_of_shape, spec.model, name, full, get))
    return spec, _publish(made, spec, out)


def _publish(made: Mapping[str, Share], spec: RunSpec, out: Path) -> Manifest:
    """Writes the checkpoint of step 0, or leaves nothing."""
    where = folders.saving(out, 0, 0)
    try:
        part = storage.write(made, where / "rank-0.bin")
        manifest = folders.merge([part], step=0, run=0, attempt=0, spec=spec.model_dump(mode="json"), scalars={})
        folders.publish(where, out, manifest, keep=1)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror}).") from error
    finally:
        shutil.rmtree(where, ignore_errors=True)  # once published, it has another name
    return manifest


def _spec(config: Mapping[str, Any], seq: int) -> RunSpec:
    """The spec with the model of a config.json. Its corpus is a token file unless its tokens are bytes: text read as
    bytes would be meaningless to a model with another tokenizer.

    Raises CheckpointError if no run can have such a model.
    """
    model = model_of(config, seq)
    train = {} if model["vocab"] == BYTES else {"corpus": f"tokens:{OWN_TOKENS}"}
    try:
        return RunSpec.model_validate({"model": model, "train": train})
    except ValidationError as error:
        said = " ".join(f"{field}: {why}" for field, why in field_errors(error).items())
        raise CheckpointError(f"{CONFIG} describes no model of this engine. {said}") from error


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG).read_text())
    except OSError as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read: {error.strerror or error}") from error
    except PARSE_ERRORS as error:
        raise CheckpointError(f"{path / CONFIG} is no JSON ({error}).") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path / CONFIG} is no description of a model: it holds no names.")
    return config


def _of_shape(model: ModelSpec, name: str, shape: tuple[int, ...], get: Get) -> Tensor:
    try:
        tensor = ours(model, name, get)
    except RuntimeError as error:  # the tensors that it is combined from have other sizes
        raise CheckpointError(f"The weights for {name} do not fit {CONFIG}: {error}.") from error
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"The weights for {name} have shape {tuple(tensor.shape)}; {CONFIG} says {shape}.")
    return tensor


def export_weights(path: Path, out: Path) -> int:
    """Writes the values of the checkpoint `path` to the folder `out` as Llama weights; returns the file's size in
    bytes.

    Raises CheckpointError if the checkpoint is damaged or does not contain a Llama, and if `out` cannot be written.
    """
    manifest = read(path)
    try:
        model = RunSpec.stored(manifest.spec).model
    except ValidationError as error:
        raise CheckpointError(f"Its spec is none of this engine's: {' '.join(field_errors(error).values())}") from error
    config = config_of(model)

    def get(name: str) -> Tensor:
        stored = manifest.tensors[f"value/{name}"]
        tensor = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
        whole = Box((0,) * len(stored.shape), stored.shape)
        storage.load({f"value/{name}": Share(stored.shape, [(whole, tensor.view(-1))])}, path, manifest)
        return tensor

    def shape(name: str) -> Tensor:
        stored = manifest.tensors[f"value/{name}"]
        return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta")

    about = {name: (_NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in theirs(model, shape)}
    data = (tensor.contiguous().view(-1).view(torch.uint8).numpy().data for _, tensor in theirs(model, get))
    dtype = TYPES[next(iter(about.values()))[0]]
    return _put(out, {**config, "torch_dtype": str(dtype).removeprefix("torch.")}, about, data)


def _put(out: Path, config: Mapping[str, Any], about: Mapping[str, Any], data: Iterable[memoryview]) -> int:
    """Writes the config and the weights, or none of both; returns the weights' size in bytes."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with whole_file(out / CONFIG) as file:
            file.write(json.dumps(config, indent=2).encode())
            file.flush()
            return safetensors.write(out / safetensors.SINGLE, about, data)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror}).") from error
