"""What a folder of Llama weights (Touvron et al. 2023) holds, by config.json and the headers of its *.safetensors, in
the layout of Hugging Face: its model, or why this engine cannot begin from it. Without torch, for workers and pages.

Only safetensors are read. Pickled weights (*.bin, *.pt, *.pth) are never loaded: reading them would run their code.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parallel_core.checkpoint import safetensors
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.model_spec import ModelSpec
from parallel_core.outline.gpt import GptOutline
from parallel_core.rules import field_errors
from parallel_core.untrusted import PARSE_ERRORS, text_of

CONFIG = "config.json"
EPS = 1e-5
"""Epsilon of this engine's RMSNorm."""
TYPES = ("F64", "F32", "F16", "BF16")
"""The format's names of the element types that weights may have."""
_ABLE: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "tie_word_embeddings": (False, True, None),
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


def model_of(config: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """The fields of ModelSpec from a config.json, for sequences of `seq` tokens. Raises CheckpointError if this engine
    does not support the model, or the weights are quantised."""
    if (how := config.get("quantization_config")) is not None:
        kind = how.get("quant_method") if isinstance(how, dict) else how
        raise CheckpointError(f"{CONFIG} has quantization_config {kind!r}; weights are {', '.join(TYPES)}.")
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


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder. Raises CheckpointError if it is missing or no description of a model."""
    try:
        config = json.loads(text_of(path / CONFIG))
    except OSError as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read: {error.strerror or error}") from error
    except PARSE_ERRORS as error:
        raise CheckpointError(f"{path / CONFIG} is no JSON ({error}).") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path / CONFIG} is no description of a model: it holds no names.")
    return config


NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names by which a spec can name a folder of weights."""
USUAL_SEQ = 1024
"""Sequence length that a listing proposes, unless the model was made for shorter ones."""
PICKLED = ("*.bin", "*.pt", "*.pth")
_UNUSED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tensors of older files that follow from the config."""
_MODEL_ONLY_HERE = ("seq", "dropout", "attention", "width", "image", "channels", "classes")
"""Fields of ModelSpec on which no weight depends."""


def path_of(name: str, folder: Path | None) -> Path:
    """The folder of weights of that name in the data folder. Raises CheckpointError if there is none."""
    if folder is None:
        raise CheckpointError(f"The weights {name} cannot be read: this run has no data folder.")
    if not (folder / name).is_dir():
        raise CheckpointError(f"The weights {name} are not there: {folder / name} is no folder.")
    return folder / name


def expected(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face's name of each tensor of a Llama -> its shape."""
    outline, hidden = GptOutline(model), model.hidden
    kv = outline.kv_heads * outline.head_dim
    of_layer = {
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,)),
        **dict.fromkeys(("self_attn.q_proj", "self_attn.o_proj"), (hidden, hidden)),
        **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (kv, hidden)),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (outline.ffn, hidden)),
        "mlp.down_proj": (hidden, outline.ffn),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (model.vocab, hidden)}
    for i in range(model.layers):
        found |= {f"model.layers.{i}.{part}.weight": shape for part, shape in of_layer.items()}
    found["model.norm.weight"] = (hidden,)
    return found if model.tied else {**found, "lm_head.weight": (model.vocab, hidden)}


def described(path: Path) -> dict[str, Any]:
    """{model: fields of ModelSpec, dtype, parameters, bytes, values} of the folder's weights, from config and headers,
    and `values` from a few numbers of each tensor (`fingerprint`).

    `dtype` names every element type, the most frequent first. Raises CheckpointError if this engine cannot begin from
    them: another model, biases, a tied head beside one of its own, quantised numbers, cut or missing files.
    """
    model, files = _checked(path)
    wanted = expected(model)
    counts: dict[str, int] = {}
    for name, shape in wanted.items():
        dtype = files[name].entries[name].dtype
        counts[dtype] = counts.get(dtype, 0) + math.prod(shape)
    return {
        "model": _told(model),
        "dtype": ", ".join(sorted(counts, key=lambda dtype: -counts[dtype])),
        "parameters": sum(counts.values()),
        "bytes": sum(count * safetensors.ITEM[dtype] for dtype, count in counts.items()),
        "values": fingerprint(files),
    }


def _checked(path: Path) -> tuple[ModelSpec, dict[str, safetensors.SafeTensors]]:
    """The folder's model, and the file of each of its tensors. Raises CheckpointError as `described`."""
    model = _model(read_config(path))
    files = open_all(path)
    _check(files, model)
    return model, files


def _told(model: ModelSpec) -> dict[str, Any]:
    """The model's fields as a worker tells them."""
    return model.model_dump(mode="json", exclude=set(_MODEL_ONLY_HERE) - {"seq"})


def fingerprint(files: Mapping[str, safetensors.SafeTensors]) -> str:
    """Tells weights from others of the same model: a digest of a few numbers of every tensor. Training, or rounding
    to another type, changes some of them; which file has which tensor does not matter."""
    samples = {file: file.samples() for file in set(files.values())}
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(
            f"{name} {file.entries[name].dtype}".encode(errors="backslashreplace") + samples[file].get(name, b"")
        )
    return digest.hexdigest()[:16]


def _model(config: Mapping[str, Any]) -> ModelSpec:
    longest = config.get("max_position_embeddings")
    seq = min(USUAL_SEQ, longest) if isinstance(longest, int) and longest > 0 else USUAL_SEQ
    try:
        return ModelSpec.model_validate(model_of(config, seq))
    except ValidationError as error:
        raise no_such_model(error) from error


def no_such_model(error: ValidationError) -> CheckpointError:
    """The error of a config.json that this engine has no model for, with the fields that say why."""
    said = " ".join(f"{field}: {why}" for field, why in field_errors(error).items())
    return CheckpointError(f"{CONFIG} describes no model of this engine. {said}")


def open_all(path: Path) -> dict[str, safetensors.SafeTensors]:
    """Tensor name -> the file of the folder that has it. Raises CheckpointError as safetensors.open_all, and with the
    name of pickled weights where there are only such."""
    if (path / safetensors.INDEX).exists() or (path / safetensors.SINGLE).exists():
        return safetensors.open_all(path)
    pickled = sorted(file.name for kind in PICKLED for file in path.glob(kind))
    has = f"has {pickled[0]}, and pickled weights are never loaded, as that would run their code" if pickled else ""
    raise CheckpointError(
        f"{path} {has or 'has no weights'}; it needs {safetensors.SINGLE}, or {safetensors.INDEX} and the files that "
        "it names."
    )


def _check(files: Mapping[str, safetensors.SafeTensors], model: ModelSpec) -> None:
    """Raises CheckpointError unless exactly the model's tensors are there, of its shapes and of supported types."""
    wanted = expected(model)
    for name, shape in wanted.items():
        if name not in files:
            why = f"; {CONFIG} has tie_word_embeddings=False" if name == "lm_head.weight" else ""
            raise CheckpointError(f"The weights lack {name}{why}.")
        entry = files[name].entries[name]
        if entry.dtype not in TYPES:
            raise CheckpointError(f"The weights hold {name} as {entry.dtype}; this engine reads {', '.join(TYPES)}.")
        if entry.shape != shape:
            raise CheckpointError(f"The weights' {name} has shape {entry.shape}; {CONFIG} says {shape}.")
    require_no_others(files, model)


def require_no_others(names: Iterable[str], model: ModelSpec) -> None:
    """Raises CheckpointError if weights have a tensor that the model has not: its values would be lost silently."""
    for name in sorted(set(names) - expected(model).keys()):
        if name == "lm_head.weight":
            raise CheckpointError(f"The weights have {name}, but {CONFIG} has tie_word_embeddings=True.")
        if name.endswith(".bias"):
            raise CheckpointError(f"The weights have {name}; a Llama of this engine has no biases.")
        if not _UNUSED.fullmatch(name):
            raise CheckpointError(f"The weights have {name}, which no Llama of this engine has.")


def differences(weights: Mapping[str, Any], model: ModelSpec) -> dict[str, tuple[Any, Any]]:
    """Field of ModelSpec -> (value of the weights, value of `model`) where these differ and a weight depends on it.

    `weights`: the fields of their model, as `described` tells them. Values left to a default are compared as they come
    out.
    """
    theirs = ModelSpec.model_validate(dict(weights))
    mine, other = (_whole(one) for one in (model, theirs))
    return {name: (value, mine[name]) for name, value in other.items() if value != mine[name]}


def _whole(model: ModelSpec) -> dict[str, Any]:
    fields = model.model_dump(exclude=set(_MODEL_ONLY_HERE))
    if model.kind != "gpt":
        return fields
    outline = GptOutline(model)
    return {**fields, "kv_heads": outline.kv_heads, "ffn": outline.ffn}


def require_match(path: Path, model: ModelSpec) -> dict[str, safetensors.SafeTensors]:
    """The file of each tensor. Raises CheckpointError if a run of `model` cannot begin from the folder's weights;
    `fields`: what differs."""
    theirs, files = _checked(path)
    if wrong := differences(_told(theirs), model):
        said = {f"model.{name}": difference(path.name, name, *values) for name, values in wrong.items()}
        raise CheckpointError(" ".join(said.values()), said)
    return files


def difference(weights: str, name: str, theirs: Any, mine: Any) -> str:
    """That a field of the model differs from the weights, as a sentence."""
    return f"The weights {weights} have {name}={theirs}; this run has {name}={mine}."
