"""Imports and exports Llama weights (Touvron et al. 2023) in the safetensors layout of Hugging Face.

Their layout has separate tensors for queries, keys and values, and for gate and up; this engine interleaves them by
group and by pair (see models.gpt). In both, RoPE rotates the pairs (i, i + dim / 2) of a head. Values are only
rearranged, so importing an export gives the same bits. One tensor at a time is in memory.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from parallel_core.atomic_file import whole_file
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import llama_weights, parts, safetensors
from parallel_core.checkpoint.llama_weights import CONFIG, EPS, model_of, no_such_model, read_config
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, read
from parallel_core.engine import storage
from parallel_core.engine.shares import Box, ComputedShare, Share
from parallel_core.llama_models import no_llama
from parallel_core.model_spec import BYTES
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec, RunSpec, field_errors

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
PIECE = 64 * 2**20
"""Bytes of a share that are read at a time."""
OWN_TOKENS = "own"
"""Name of the token file in the spec of a model with any other vocabulary: the user has to pack it first."""

Get = Callable[[str], Tensor]
"""Returns the full tensor of a name."""


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
        return torch.cat([part.view(kv, -1, part.shape[-1]) for part in (q, k, v)], 1).flatten(0, 1)
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
    spec = _spec(read_config(path), seq)
    files = llama_weights.open_all(path)
    llama_weights.require_no_others(files, spec.model)

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


def load(
    shares: Mapping[str, Share], path: Path, model: ModelSpec, tell: Callable[[], None] = storage.no_progress
) -> None:
    """Fills the memory of `shares`, named <kind>/<parameter>, from the folder of Llama weights at `path`, under any
    layout. The files are mapped, and of a tensor only the rows and columns in the shares are read.

    `tell` is called once per PIECE bytes: a slow disk must not look like a rank that hangs, and no more than a piece is
    in memory besides. Raises CheckpointError if the weights are damaged or of another model.
    """
    files = llama_weights.require_match(path, model)
    for name, share in shares.items():
        rows = _Rows(model, name.partition("/")[2], files)
        for box, memory in share.parts():
            at_once = max(1, PIECE // max(1, memory[:1].nbytes))
            for first in range(0, len(memory), at_once):
                tell()
                into = memory[first : first + at_once]
                offsets = box.offsets[0] + first, *box.offsets[1:]
                into.copy_(rows.part(Box(offsets, tuple(into.shape)), into.dtype))


class _Rows:
    """A parameter as the rows of Hugging Face's tensors that it is combined from."""

    def __init__(self, model: ModelSpec, name: str, files: Mapping[str, safetensors.SafeTensors]) -> None:
        self._files = files
        self._sources: list[tuple[int, Tensor]] = []
        self._total = 0
        self._numbers = ours(model, name, self._numbered).flatten()

    def _numbered(self, name: str) -> Tensor:
        """The numbers of the tensor's rows among those of all sources, in the shape of its first column."""
        source = _mapped(self._files[name], name)
        first, self._total = self._total, self._total + len(source)
        self._sources.append((first, source))
        return torch.arange(first, self._total).view(-1, *[1] * (source.dim() - 1))

    def part(self, box: Box, dtype: torch.dtype) -> Tensor:
        """The elements of a box of the parameter."""
        inner = tuple(slice(at, at + size) for at, size in zip(box.offsets[1:], box.sizes[1:], strict=True))
        rows = slice(box.offsets[0], box.offsets[0] + box.sizes[0])
        if len(self._sources) == 1:
            return self._sources[0][1][rows, *inner]
        wanted, out = self._numbers[rows], torch.empty(box.sizes, dtype=dtype)
        for first, source in self._sources:
            (at,) = torch.where((wanted >= first) & (wanted < first + len(source)))
            out[at] = source[:, *inner][wanted[at] - first].to(dtype)
        return out


def _mapped(file: safetensors.SafeTensors, name: str) -> Tensor:
    """A tensor in the file's mapping, not to be written to."""
    entry = file.entries[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only, as it should be
        return torch.frombuffer(file.data(name), dtype=TYPES[entry.dtype]).view(entry.shape)


def _publish(made: Mapping[str, Share], spec: RunSpec, out: Path) -> Manifest:
    """Writes the checkpoint of step 0, or leaves nothing."""
    where = folders.saving(out, 0, 0)
    try:
        part = storage.write(made, where / "rank-0.bin")
        manifest = parts.merge([part], step=0, run=0, attempt=0, spec=spec.model_dump(mode="json"), scalars={})
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
        raise no_such_model(error) from error


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
    config, shapes = config_of(model), parameter_shapes(model).items()
    values = {name: storage.require(manifest, f"value/{name}", shape) for name, shape in shapes}

    def get(name: str) -> Tensor:
        stored = values[name]
        tensor = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
        whole = Box((0,) * len(stored.shape), stored.shape)
        storage.load({f"value/{name}": Share(stored.shape, [(whole, tensor.view(-1))])}, path, manifest)
        return tensor

    def shape(name: str) -> Tensor:
        stored = values[name]
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
