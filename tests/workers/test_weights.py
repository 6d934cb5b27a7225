"""Runs that begin from Llama weights in this host's data folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.analysis.generated import together
from parallel_core.checkpoint import llama_weights, weights_listing
from parallel_core.generation_request import inference
from parallel_core.observe import record_files
from tests.parallel_core.test_llama import put, tensors
from tests.workers.harness import NAME, Bench
from tests.workers.test_small_parts import DEVICES, message
from workers.run_commands import Refused, read_command, with_beginning
from workers.settings import Settings
from workers.weights import Weights
from workers.worker import Worker

REQUEST = {"prompt": [1, 2, 3], "new": 8, "samples": 1, "temperature": 1.0, "seed": 3, "cached": True}


def weights_in(folder: Path, name: str = "tiny") -> dict[str, Any]:
    """Puts weights there; returns a spec that begins from them, whose training changes nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / name, tensors(torch.float32, 256), vocab_size=256)
    model = {**llama_weights.described(folder / name)["model"], "seq": 16}
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 2, "checkpoint_every": 2, "lr": 1e-30, "weights": name}
    return {"model": model, "parallel": {"tp": 2}, "train": train}


def test_a_run_trains_and_generates_from_weights_of_this_host(bench: Bench) -> None:
    """What it saves after steps that change nothing generates the text of the weights themselves."""
    spec = weights_in(bench.folder / "corpora")
    assert bench.wait_end(bench.send(spec, run=970))["outcome"] == "succeeded"
    whole = llama_weights.ModelSpec.model_validate(spec["model"]).model_dump(mode="json")
    saved = {"model": whole, "train": {"precision": "fp32", "device": "cpu"}}
    texts = []
    begins: dict[str, dict[str, Any]] = {"tiny": {}, "": {"resume": {"run": 970, "step": 2}}}
    for run, (name, more) in enumerate(begins.items(), 971):
        asked = inference(saved, 2, weights=name).model_dump(mode="json")
        attempt = bench.send(asked, run=run, task=REQUEST, **more)
        assert bench.wait_end(attempt)["outcome"] == "succeeded"
        frames = record_files.decode(bench.received(attempt, "events", 0))
        found = together(frame.header for frame in frames if frame.kind == "generated")
        assert found is not None
        texts.append(found["tokens"])
    assert texts[0] == texts[1] and len(set(texts[0][0])) > 2

    shutil.rmtree(bench.folder / "corpora" / "tiny")
    end = bench.wait_end(bench.send(spec, run=973))
    assert end["outcome"] == "failed"
    assert f"Worker {NAME} cannot begin from the weights in {bench.folder / 'corpora' / 'tiny'}: " in end["detail"]
    assert "is no folder" in end["detail"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path)


def test_weights_that_are_gone_or_of_another_model_are_refused_before_a_rank_starts(settings: Settings) -> None:
    spec = weights_in(settings.corpora)
    with_beginning(read_command(message(spec=spec), "a", DEVICES), settings)
    wrong = {**spec, "model": {**spec["model"], "layers": 1}}
    with pytest.raises(Refused, match=r"Worker a .*/tiny: The weights tiny have layers=2; this run has layers=1\."):
        with_beginning(read_command(message(spec=wrong), "a", DEVICES), settings)
    file = settings.corpora / "tiny" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Refused, match=r"Worker a .*/tiny: .*model\.safetensors is no whole safetensors file"):
        with_beginning(read_command(message(spec=spec), "a", DEVICES), settings)
    other = read_command(message(spec={**spec, "train": {**spec["train"], "weights": "huge"}}), "a", DEVICES)
    with pytest.raises(
        Refused, match=rf"Worker a cannot begin from the weights in {settings.corpora}/huge: .* no folder"
    ):
        with_beginning(other, settings)


def test_a_beat_tells_of_weights_once_they_were_listed_and_reads_none_itself(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(settings)
    assert "weights" not in worker.heartbeat.body(), "an empty list would tell the yard that they are gone"
    worker.host.weights.look()
    assert worker.heartbeat.body()["weights"] == []
    weights_in(settings.corpora)
    worker.host.weights.look()

    def stalled(*_: Any) -> Any:
        raise AssertionError("a heartbeat read weights")

    monkeypatch.setattr(weights_listing, "listing", stalled)
    (told,) = worker.heartbeat.body()["weights"]
    assert (told["name"], told["dtype"], told["model"]["layers"]) == ("tiny", "F32", 2)


def test_weights_stay_known_while_their_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(tmp_path)
    weights_in(tmp_path)
    weights.look()
    listed = weights.known

    def failing(*_: Any) -> Any:
        raise OSError("stale file handle")

    monkeypatch.setattr(weights_listing, "listing", failing)
    weights.look()
    assert listed and weights.known == listed
