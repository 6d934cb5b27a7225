"""Llama weights: the same function as the original model, exported bits equal to those imported, damaged files
refused.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import safetensors
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.llama_weights import CONFIG
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.checkpoint.match import require_match
from parallel_core.cli import main
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset
from parallel_core.engine import checkpoint, storage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.llama import TYPES, export_weights, import_weights
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.spies import noting

CONFIGURED: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
SEQ = 16


def tensors(dtype: torch.dtype = torch.float64, vocab: int = 64) -> dict[str, Tensor]:
    """Weights with the names and shapes of Hugging Face."""
    h, f, kv = 32, 48, 16
    shapes = {"model.embed_tokens.weight": (vocab, h), "model.norm.weight": (h,), "lm_head.weight": (vocab, h)}
    for i in range(2):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.input_layernorm.weight": (h,), f"{at}.post_attention_layernorm.weight": (h,)}
        shapes |= {f"{at}.self_attn.q_proj.weight": (h, h), f"{at}.self_attn.o_proj.weight": (h, h)}
        shapes |= {f"{at}.self_attn.{part}_proj.weight": (kv, h) for part in "kv"}
        shapes |= {f"{at}.mlp.gate_proj.weight": (f, h), f"{at}.mlp.up_proj.weight": (f, h)}
        shapes |= {f"{at}.mlp.down_proj.weight": (h, f)}
    generator = torch.Generator().manual_seed(3)
    return {name: (0.3 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in shapes.items()}


def put(folder: Path, weights: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    names = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16"}
    about = {name: (names[t.dtype], tuple(t.shape)) for name, t in weights.items()}
    safetensors.write(folder / "model.safetensors", about, (_bytes(t) for t in weights.values()))
    (folder / CONFIG).write_text(json.dumps({**CONFIGURED, **config}))
    return folder


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def their_loss(w: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> float:
    """LlamaForCausalLM written from its paper and its configuration, without any code of this engine."""
    x, (batch, seq) = w["model.embed_tokens.weight"][tokens], tokens.shape
    angle = torch.arange(seq).double()[:, None] * 500_000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"]

    def turn(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin

    for i in range(2):
        at = f"model.layers.{i}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (F.linear(y, w[f"{at}.self_attn.{p}_proj.weight"]).view(batch, seq, -1, 8).mT.mT for p in "qkv")
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = turn(q) @ turn(k).mT / math.sqrt(8) + torch.full((seq, seq), -math.inf).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, -1)
        x = x + F.linear(mixed, w[f"{at}.self_attn.o_proj.weight"])
        y = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (F.linear(y, w[f"{at}.mlp.{p}_proj.weight"]) for p in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, w[f"{at}.mlp.down_proj.weight"])
    logits = F.linear(norm(x, "model.norm"), w["lm_head.weight"])
    return float(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def first_loss(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, imported: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        assert checkpoint.load(trainer, folders.path_of(imported, 0)) == 0
        drawn = trainer.reader.sampler.micro_batches(0, tuple(range(trainer.layout.micro_batches)))
        return trainer.step(0).loss, drawn.inputs.reshape(-1, SEQ), drawn.targets.reshape(-1, SEQ)

    return ranks.with_trainer(spec, rank, meeting, folder, use)


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"dp": 2, "zero": 1}], ids=str)
def test_the_model_is_theirs_under_any_layout(split: dict[str, int], tmp_path: Path) -> None:
    weights = tensors()
    made, _ = import_weights(put(tmp_path / "theirs", weights), tmp_path / "ours", SEQ)
    train = {"precision": "fp64", "global_batch": 4, "steps": 4}
    spec = RunSpec.model_validate({**made.model_dump(), "parallel": split, "train": train})

    work = partial(first_loss, imported=tmp_path / "ours")
    loss, tokens, targets = ranks.run(spec, work, ranks.scratch())[0]
    assert loss == pytest.approx(their_loss(weights, torch.tensor(tokens), torch.tensor(targets)), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_out_come_the_bits_that_went_in(dtype: torch.dtype, tied: bool, tmp_path: Path) -> None:
    weights = tensors(dtype)
    if tied:
        del weights["lm_head.weight"]
    import_weights(put(tmp_path / "in", weights, tie_word_embeddings=tied), tmp_path / "ours", SEQ)
    export_weights(folders.path_of(tmp_path / "ours", 0), tmp_path / "out")
    found = safetensors.open_all(tmp_path / "out")
    assert {name: bytes(file.data(name)) for name, file in found.items()} == {n: _bytes(t) for n, t in weights.items()}
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert {key: config[key] for key in CONFIGURED} == {**CONFIGURED, "tie_word_embeddings": tied}


def test_weights_of_several_types_keep_their_values(tmp_path: Path) -> None:
    """The last norm, from which nothing about the others follows, has the narrowest type."""
    widest = {"input_layernorm": torch.float64, "q_proj": torch.float32, "up_proj": torch.float32}
    weights = {name: tensor.to(widest.get(name.split(".")[-2], torch.bfloat16)) for name, tensor in tensors().items()}
    _, manifest = import_weights(put(tmp_path / "in", weights), tmp_path / "ours", SEQ)
    types = {name.removeprefix("value/block.0."): stored.dtype for name, stored in manifest.tensors.items()}
    assert types["attn.norm.weight"] == "float64" and types["attn.proj.weight"] == "bfloat16"
    assert types["attn.qkv.weight"] == types["mlp.fc1.weight"] == "float32"
    export_weights(folders.path_of(tmp_path / "ours", 0), tmp_path / "out")
    for name, file in safetensors.open_all(tmp_path / "out").items():
        found = torch.frombuffer(bytearray(file.data(name)), dtype=TYPES[file.entries[name].dtype])
        assert torch.equal(found.double(), weights[name].double().flatten()), name


def test_16_bit_weights_begin_an_fp32_run_and_fill_master_weights(tmp_path: Path) -> None:
    weights = tensors(torch.bfloat16)
    made, _ = import_weights(put(tmp_path / "in", weights), tmp_path / "ours", SEQ)
    for precision in ("fp32", "bf16"):
        spec = RunSpec.model_validate({**made.model_dump(), "train": {"precision": precision, "global_batch": 2}})

        def use(trainer: Trainer) -> Any:
            checkpoint.load(trainer, folders.path_of(tmp_path / "ours", 0))
            main = trainer.optimizer.main
            return trainer.flat.values.float(), trainer.flat.values.float() if main is None else main

        values, main = ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())[0]
        assert values.abs().sum() > 0
        assert torch.equal(values, main)


def test_a_run_from_imported_weights_may_have_dropout_and_another_attention(tmp_path: Path) -> None:
    made, manifest = import_weights(put(tmp_path / "in", tensors()), tmp_path / "ours", SEQ)

    def match(**model: Any) -> None:
        require_match(manifest, RunSpec.model_validate({"model": made.model.model_dump() | model}))

    match(dropout=0.1, attention="plain")
    with pytest.raises(CheckpointError) as error:
        match(dropout=0.1, tied=True)
    assert set(error.value.fields) == {"model.tied"}


def test_what_a_16_bit_run_exports_says_that_it_has_16_bits(tmp_path: Path) -> None:
    """The checkpoint also holds fp32 master weights, which are not exported."""
    made, _ = import_weights(put(tmp_path / "in", tensors(torch.bfloat16)), tmp_path / "ours", SEQ)
    spec = RunSpec.model_validate({**made.model_dump(), "train": {"precision": "bf16", "global_batch": 2, "steps": 4}})

    def use(trainer: Trainer) -> Any:
        saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))
        saver.save(1)
        saver.wait()

    ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())
    export_weights(folders.path_of(tmp_path / "run", 1), tmp_path / "out")
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["torch_dtype"] == "bfloat16"
    found = safetensors.open_all(tmp_path / "out")
    assert {file.entries[name].dtype for name, file in found.items()} == {"BF16"}


def test_several_files_are_one_model(tmp_path: Path) -> None:
    folder, weights = put(tmp_path / "in", tensors()), tensors()
    where = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for file in set(where.values()):
        some = {name: weights[name] for name in weights if where[name] == file}
        about = {name: ("F64", tuple(t.shape)) for name, t in some.items()}
        safetensors.write(folder / file, about, map(_bytes, some.values()))
    (folder / "model.safetensors").unlink()
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": where}))
    assert set(safetensors.open_all(folder)) == set(weights)
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": {**where, "x": "../../etc/passwd"}}))
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        safetensors.open_all(folder)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = put(tmp_path / "theirs", tensors(torch.float32))
    assert main(["import-llama", str(folder), "--out", str(tmp_path / "ours"), "--seq", "16"]) == 0
    assert "--resume" in capsys.readouterr().out
    assert main(["export-llama", str(tmp_path / "ours"), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["export-llama", str(tmp_path / "ours"), "--out", str(folder)]) == 2, (
        "existing weights are not overwritten"
    )
    assert f"{folder} holds config.json already" in capsys.readouterr().err
    assert main(["import-llama", str(tmp_path), "--out", str(tmp_path / "again")]) == 2
    assert "config.json cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_tensor_is_exported_without_planning_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_weights(put(tmp_path / "in", tensors()), tmp_path / "ours", SEQ)
    planned: list[int] = []
    monkeypatch.setattr(storage, "_metadata", noting(storage._metadata, planned, len))
    export_weights(folders.path_of(tmp_path / "ours", 0), tmp_path / "out")
    assert set(planned) == {1}


def test_a_vocabulary_that_is_not_bytes_asks_for_a_token_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The spec does not train on a text as bytes: the token file that it names is missing until it is packed, as the
    output tells the user to do.
    """
    folder, ours, data = put(tmp_path / "theirs", tensors(torch.float32)), tmp_path / "ours", tmp_path / "data"
    assert main(["import-llama", str(folder), "--out", str(ours), "--seq", "16"]) == 0
    said = capsys.readouterr().out
    assert "pack-tokens FILE --vocab 64 --name own --out DATA" in said and "Its 64 tokens are no bytes" in said
    spec = RunSpec.model_validate_json((ours / "spec.json").read_text())
    with pytest.raises(CorpusError, match=r"tokens:own cannot be read: .* put it there with `pack-tokens`"):
        open_dataset(spec, data)
    (tmp_path / "raw").write_bytes(np.arange(64, dtype="<u2").tobytes())
    packed = ["pack-tokens", str(tmp_path / "raw"), "--vocab", "64", "--name", "own", "--out", str(data)]
    assert main(packed) == 0
    assert open_dataset(spec, data).take(np.array([0]))[0].tolist() == [list(range(16))]

    assert manifests.read(folders.path_of(ours, 0)).spec["train"]["corpus"] == "tokens:own"


def test_text_is_no_prompt_for_tokens_that_are_no_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, ours = put(tmp_path / "theirs", tensors(torch.float32, 300), vocab_size=300), tmp_path / "ours"
    assert main(["import-llama", str(folder), "--out", str(ours), "--seq", "16"]) == 0
    assert main(["generate", str(ours), "--prompt", "Hi", "--new", "2"]) == 2
    assert "the model's 300 tokens are none; give their numbers with --ids" in capsys.readouterr().err


@pytest.mark.full
def test_what_was_trained_is_exported_not_the_weights_beside_it(tmp_path: Path) -> None:
    """The run saves into the folder that it was imported to, as a user may choose."""
    theirs, ours = put(tmp_path / "theirs", tensors(torch.float32, 256), vocab_size=256), tmp_path / "ours"
    assert main(["import-llama", str(theirs), "--out", str(ours), "--seq", "16"]) == 0
    spec = json.loads((ours / "spec.json").read_text())
    spec["train"] |= {"steps": 2, "warmup_steps": 0, "global_batch": 2, "checkpoint_every": 2}
    (ours / "spec.json").write_text(json.dumps(spec))
    assert main(["train", str(ours / "spec.json"), "--resume", str(ours), "--out", str(ours)]) == 0
    assert main(["export-llama", str(ours), "--out", str(tmp_path / "out")]) == 0
    name = "lm_head.weight"
    before, after = (safetensors.open_all(path)[name] for path in (theirs, tmp_path / "out"))
    assert bytes(before.data(name)) != bytes(after.data(name))


def test_a_vocabulary_of_bytes_trains_on_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = put(tmp_path / "theirs", tensors(torch.float32, 256), vocab_size=256)
    assert main(["import-llama", str(folder), "--out", str(tmp_path / "ours"), "--seq", "16"]) == 0
    assert "pack-tokens" not in capsys.readouterr().out
    assert RunSpec.model_validate_json((tmp_path / "ours" / "spec.json").read_text()).train.corpus == "stdlib"
