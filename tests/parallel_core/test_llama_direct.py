"""A run that begins from a folder of Llama weights has the values of one that begins from their import."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint, generate, llama, storage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.llama import import_weights
from parallel_core.engine.run import run_rank
from parallel_core.engine.shares import Box, Share
from parallel_core.engine.trainer import Trainer
from parallel_core.generation_request import inference
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, last_of
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.generated_texts import REQUEST, generated
from tests.parallel_core.test_llama import SEQ, put, tensors
from tests.parallel_core.test_llama_offered import HEAD, shard


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"dp": 2, "zero": 3}], ids=str)
def test_values_are_those_of_the_import(split: dict[str, int], tmp_path: Path) -> None:
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    spec = RunSpec.model_validate({**made.model_dump(), "parallel": split, "train": {"global_batch": 2}})

    def use(trainer: Trainer) -> Any:
        checkpoint.load_weights(trainer, weights)
        direct = trainer.flat.values.clone()
        trainer.flat.values.zero_()
        checkpoint.load(trainer, folders.path_of(tmp_path / "ours", 0))
        return torch.equal(direct, trainer.flat.values), bool(direct.any())

    assert set(ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())) == {(True, True)}


@pytest.mark.parametrize("split", [{"tp": 1}, {"tp": 2}, {"tp": 1, "pp": 2}], ids=str)
def test_text_is_that_of_the_import(split: dict[str, Any], tmp_path: Path) -> None:
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    request: Any = {**REQUEST, "prompt": [1, 2, 3], "new": 8}
    direct, imported = (
        generated(inference(made.model_dump(mode="json"), **split, weights=name), path, request)[0][0]
        for name, path in (("theirs", weights), ("", folders.path_of(tmp_path / "ours", 0)))
    )
    assert direct["tokens"] == imported["tokens"] and len(set(direct["tokens"][0])) > 2


def test_weights_of_another_model_are_refused_by_a_rank(tmp_path: Path) -> None:
    """Also where they were exchanged after the worker had looked at them."""
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    spec = RunSpec.model_validate({"model": {**made.model.model_dump(), "layers": 3}, "train": {"global_batch": 2}})

    def use(trainer: Trainer) -> str:
        with pytest.raises(CheckpointError) as told:
            checkpoint.load_weights(trainer, weights)
        return str(told.value)

    (said,) = ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())
    assert said == "The weights theirs have layers=2; this run has layers=3."


@pytest.mark.parametrize("piece", [1, 1000, 64 * 2**20])
def test_large_shares_are_read_in_pieces(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank tells of each that it gets on: one share may take a slow disk longer than a rank may stand still."""
    monkeypatch.setattr(llama, "PIECE", piece)
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    imported, shares = folders.path_of(tmp_path / "ours", 0), {}
    told: list[int] = []
    for name, shape in parameter_shapes(made.model).items():
        rows, *inner = shape
        box = Box((rows // 2, *[0] * len(inner)), (rows - rows // 2, *inner))
        shares[f"value/{name}"] = Share(shape, [(box, torch.zeros(box.sizes).view(-1))])
    llama.load(shares, weights, made.model, lambda: told.append(1))
    for name, share in shares.items():
        ((box, memory),) = share.parts()
        whole = torch.empty(parameter_shapes(made.model)[name.partition("/")[2]])
        full = Share(whole.shape, [(Box((0,) * whole.dim(), tuple(whole.shape)), whole.view(-1))])
        storage.load({name: full}, imported, manifests.read(imported))
        assert torch.equal(memory, whole[box.offsets[0] :])
    least = sum(share.parts()[0][1].nbytes for share in shares.values()) / piece
    assert len(told) >= (least if piece > 1 else sum(len(share.parts()[0][1]) for share in shares.values()))


def _of_own_host(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, hosts: Path) -> str:
    """What the rank says of weights in the data folder of its own host."""
    page, sink = Progress(folder, rank), FileSink(folder, rank)
    try:
        run_rank(spec, rank, sink, meeting, page, hosts / str(rank))
    except Exception as error:  # also of rank 0, which the other one has left
        return str(error)
    return ""


def _generated(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, path: Path) -> tuple[Any, str]:
    """What the rank says that it generated from, and why it ended where it has to be other weights."""
    sink, page = FileSink(folder, rank), Progress(folder, rank)
    generate.run_rank(spec, rank, sink, meeting, page, path, {**REQUEST, "prompt": [1, 2], "new": 2})
    with pytest.raises(CheckpointError) as caught:
        generate.run_rank(spec, rank, sink, meeting, page, path, REQUEST, {"weights": "0" * 16})
    return (last_of(folder, rank, "hello") or {})["reads"], str(caught.value)


def test_a_later_attempt_generates_from_no_other_weights(tmp_path: Path) -> None:
    path = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(path, tmp_path / "ours", SEQ)
    spec = inference(made.model_dump(mode="json"), 1, weights="theirs")
    ((read, why),) = ranks.run(spec, partial(_generated, path=path), ranks.scratch())
    digits = llama_weights.fingerprint(llama_weights.open_all(path))
    assert read == {"weights": digits}
    assert f"is {digits}, and was {'0' * 16}. Put the earlier one back and run it again, or generate from this" in why


@pytest.mark.parametrize("same", [True, False], ids=["the same", "others"])
def test_hosts_with_other_weights_of_one_name_do_not_train_together(same: bool, tmp_path: Path) -> None:
    """Each would add the same updates to its own values: replicas that differ for ever."""
    weights = tensors(torch.float32, 256)
    tuned = weights if same else weights | {HEAD: weights[HEAD] * 1.001}
    for host, values in enumerate((weights, tuned)):
        (tmp_path / str(host)).mkdir()
        put(tmp_path / str(host) / "tiny", values, vocab_size=256)
    model = {**llama_weights.described(tmp_path / "0" / "tiny")["model"], "seq": SEQ}
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 2, "weights": "tiny"}
    spec = RunSpec.model_validate({"model": model, "parallel": {"dp": 2}, "train": train})
    first, second = ranks.run(spec, partial(_of_own_host, hosts=tmp_path), ranks.scratch())
    if same:
        assert (first, second) == ("", "")
    else:
        assert second.startswith("The weights tiny of rank 1 are others than those of rank 0:"), second


def test_weights_are_the_same_in_one_file_and_in_several(tmp_path: Path) -> None:
    whole, parts = (put(tmp_path / name, tensors(torch.float32)) for name in ("whole", "parts"))
    assert llama_weights.described(whole) == llama_weights.described(shard(parts))
