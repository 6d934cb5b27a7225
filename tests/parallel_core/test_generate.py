"""Text from the KV cache equals text generated from the whole sequence: on one device, over tensor ranks, and over
stages.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.analysis.generated import Generated, merged, rate, replicas
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.cli import main
from parallel_core.engine import checkpoint, host_memory, relay
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect, disconnect
from parallel_core.engine.generate import Generator, run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.generation_request import inference
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import FileSink
from parallel_core.plan.generation import by_place
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

SIZE = {"layers": 2, "hidden": 32, "heads": 4, "seq": 48, "vocab": 256}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZE,
    "llama": SIZE | {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False, "kv_heads": 2},
    "plain": SIZE | {"attention": "plain", "positions": "rope", "tied": True},
}
PROMPT, NEW = list(b"def sum("), 24
REQUEST: GenerationRequest = {"prompt": PROMPT, "new": NEW, "samples": 1, "temperature": 0.0, "seed": 7, "cached": True}


def spec_of(model: str, precision: str = "fp64", **parallel: Any) -> RunSpec:
    train = {"precision": precision, "global_batch": 4, "steps": 30, "warmup_steps": 1, "lr": 1e-2}
    return RunSpec.model_validate({"model": MODELS[model], "parallel": parallel, "train": train})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each model after some steps of training, so that the most likely token is no tie."""
    return {name: _train(spec_of(name), tmp_path_factory.mktemp(name)) for name in MODELS}


def _train(spec: RunSpec, folder: Path) -> Path:
    def use(trainer: Trainer) -> None:
        for step in range(20):
            trainer.step(step)
        saver = checkpoint.Saver(trainer, CheckpointConfig(folder), FileSink(folder, 0))
        saver.save(20)
        saver.wait()

    def work(*given: Any) -> None:
        ranks.with_trainer(*given, use)

    ranks.run(spec, work, ranks.scratch())
    return folders.path_of(folder, 20)


def generated(spec: RunSpec, path: Path, *requests: GenerationRequest) -> list[list[Generated]]:
    """The results of each request, by rank."""

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[Generated]:
        device = open_device("cpu")
        groups = connect(meeting, rank, Layout.of(spec), device.backend)
        try:
            made = Generator(spec, rank, groups, device, path)
            return [made.generate(request) for request in requests]
        finally:
            disconnect()

    return ranks.run(spec, work, ranks.scratch())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [1, 2])
def test_cached_text_is_that_of_the_whole_sequence(model: str, tp: int, trained: dict[str, Path]) -> None:
    drawn: GenerationRequest = {**REQUEST, "temperature": 1.0}
    requests = [REQUEST, {**REQUEST, "cached": False}, drawn, {**drawn, "cached": False}]
    every = generated(spec_of(model, tp=tp), trained[model], *requests)
    for rank in every:
        assert [found["tokens"] for found in rank] == [found["tokens"] for found in every[0]]
    likeliest, whole, mixed, whole_mixed = every[0]
    assert (likeliest["tokens"], mixed["tokens"]) == (whole["tokens"], whole_mixed["tokens"])
    assert len(likeliest["tokens"][0]) == NEW
    assert len(set(mixed["tokens"][0])) > NEW // 3
    assert whole["kv_bytes"] == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_bytes_of_keys_and_values(tp: int, trained: dict[str, Path]) -> None:
    """2 x layers x samples x KV heads x tokens x dim x bytes, divided over the ranks (Pope et al. 2022, section
    2.1).
    """
    for rank in generated(spec_of("llama", tp=tp), trained["llama"], {**REQUEST, "samples": 3}):
        assert rank[0]["kv_bytes"] == 2 * 2 * 3 * 2 * (len(PROMPT) + NEW) * 8 * 8 // tp
        assert len(rank[0]["seconds"]) == NEW - 1
        assert rank[0]["prefill"] > 0


def test_spans_of_collectives_do_not_pile_up_token_by_token(trained: dict[str, Path]) -> None:
    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[int]:
        device = open_device("cpu")
        groups = connect(meeting, rank, Layout.of(spec), device.backend)
        try:
            made = Generator(spec, rank, groups, device, trained["gpt"])
            kept = []
            for new in (2, NEW):
                made.generate({**REQUEST, "new": new})
                kept.append(len(made._recorder._rows))
            return kept
        finally:
            disconnect()

    for few, many in ranks.run(spec_of("gpt", tp=2), work, ranks.scratch()):
        assert few == many > 0


class _Moves(Progress):
    """Counts how often its rank says that it moves, by the position that it is in."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        self.rank, self.seen = rank, Counter[str]()

    def moved(self) -> None:
        super().moved()
        where = progress.read(self.folder, self.rank)
        assert where is not None
        self.seen[where.op] += 1


def _moves(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, path: Path) -> Counter[str]:
    page = _Moves(folder, rank)
    run_rank(spec, rank, FileSink(folder, rank), meeting, page, path, {**REQUEST, "new": 3})
    return page.seen


def test_each_layer_counts_as_progress(trained: dict[str, Path]) -> None:
    """A token of a long text may take longer than the limit without progress; the metered ones are further tokens."""
    spec = inference(spec_of("gpt").model_dump(mode="json"), tp=1, pp=2, dp=1)
    found = ranks.run(spec, partial(_moves, path=trained["gpt"]), ranks.scratch())
    for seen, units in zip(found, Layout.of(spec).stage_units, strict=True):
        layers, metered = len(units), 2
        assert seen == {
            "generating": layers,
            "token 1 of 3": layers,
            "token 2 of 3": layers,
            "token 3 of 3": metered * layers,
        }


@pytest.mark.parametrize("split", [{"tp": 2}, {"pp": 2}, {"dp": 2}], ids=str)
def test_memory_is_what_is_predicted(split: dict[str, Any], trained: dict[str, Path]) -> None:
    """Weights and caches to the byte; the temporary memory of a layer, and so the total, within 2 %."""
    request: GenerationRequest = {**REQUEST, "samples": 6}
    for model in MODELS:
        spec = spec_of(model, **split)
        stages = by_place(spec, request)
        for rank, peak in enumerate(_metered(spec, trained[model], request)):
            predicted = stages[Layout.of(spec).coords(rank).place]
            assert (peak["params"], peak["activations"]) == (predicted.params, predicted.activations)
            assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.02), model


def _metered(spec: RunSpec, path: Path, request: GenerationRequest) -> list[dict[str, int]]:
    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> dict[str, int]:
        device = open_device("cpu")
        try:
            made = Generator(spec, rank, connect(meeting, rank, Layout.of(spec), device.backend), device, path)
            told = made.generate(request)["tokens"]
            peak = made.metered(request).peak
            assert made.generate(request)["tokens"] == told, "metering does not disturb the generator"
            return peak
        finally:
            disconnect()

    return ranks.run(spec, work, ranks.scratch())


def test_a_temperature_draws_the_same_under_any_layout(trained: dict[str, Path]) -> None:
    request: GenerationRequest = {**REQUEST, "samples": 4, "temperature": 1.5}
    (alone,) = generated(spec_of("llama"), trained["llama"], request)[0]
    (shared,) = generated(spec_of("llama", tp=2), trained["llama"], request)[0]
    assert alone["tokens"] == shared["tokens"]
    assert len({tuple(tokens) for tokens in alone["tokens"]}) == 4
    (other,) = generated(spec_of("llama"), trained["llama"], {**request, "seed": 8})[0]
    assert other["tokens"] != alone["tokens"]


@pytest.mark.parametrize("switch", ["1", pytest.param("0", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("model", "split"),
    [
        ("llama", {"pp": 2}),
        pytest.param("plain", {"pp": 3}, id="tied-3"),
        pytest.param("llama", {"pp": 2, "tp": 2}, id="llama-2x2"),
        pytest.param("gpt", {"pp": 6}, id="a layer a stage", marks=pytest.mark.full),
    ],
)
def test_stages_give_the_text_of_one_device(
    model: str, split: dict[str, Any], switch: str, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank gets every token and holds the caches of its own layers. Prompts that are sent in several pieces are
    included.
    """
    monkeypatch.setenv(host_memory.SWITCH, switch)
    monkeypatch.setattr(relay, "PIECE", 1000)
    drawn: GenerationRequest = {**REQUEST, "samples": 3, "temperature": 1.0}
    requests = [REQUEST, drawn, {**drawn, "cached": False}]
    alone, every = (
        generated(spec_of(model), trained[model], *requests)[0],
        generated(spec_of(model, **split), trained[model], *requests),
    )
    for rank in every:
        assert [found["tokens"] for found in rank] == [found["tokens"] for found in alone]
    assert [sum(rank[i]["kv_bytes"] for rank in every) for i in range(3)] == [found["kv_bytes"] for found in alone]


@pytest.mark.parametrize("switch", ["1", pytest.param("0", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("samples", "split"), [(3, {"dp": 2}), (4, {"dp": 2, "tp": 2}), (2, {"dp": 2, "pp": 2}), (5, {"dp": 3})], ids=str
)
def test_replicas_share_out_the_texts_of_one_device(
    samples: int, split: dict[str, Any], switch: str, trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, their texts are those of one device, sampled or greedy; no replica holds a cache for another's text."""
    monkeypatch.setenv(host_memory.SWITCH, switch)
    requests: list[GenerationRequest] = [{**REQUEST, "samples": samples, "temperature": heat} for heat in (0.0, 1.5)]
    alone = generated(spec_of("llama"), trained["llama"], *requests)[0]
    spec = inference(spec_of("llama").model_dump(mode="json"), **{"tp": 1, **split})
    ranks_told = generated(spec, trained["llama"], *requests)
    for i, wanted in enumerate(alone):
        told = replicas({rank: found[i] for rank, found in enumerate(ranks_told)}, Layout.of(spec))
        assert merged(told)["tokens"] == wanted["tokens"]
        assert max(len(each["tokens"]) for each in told) - min(len(each["tokens"]) for each in told) < 2
        assert sum(found[i]["kv_bytes"] for found in ranks_told) == wanted["kv_bytes"]
        speed = rate(told)
        assert speed and speed[1] == pytest.approx(sum(rate([each])[1] for each in told))  # type: ignore[index]


def _second_replica_is_late(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, path: Path) -> None:
    generate, metered, done = Generator.generate, Generator.metered, folder / "rank 0 is done"
    first = Layout.of(spec).coords(rank).replica == 0

    def late(self: Generator, *given: Any) -> Generated:
        while not first and not done.exists():
            time.sleep(0.01)
        time.sleep(0 if first else 1)  # rank 0 would have left by now
        return generate(self, *given)

    def noted(self: Generator, request: GenerationRequest) -> MemoryMeter:
        made = metered(self, request)
        if rank == 0:
            done.touch()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generator, "generate", late)
        patch.setattr(Generator, "metered", noted)
        run_rank(
            spec,
            rank,
            FileSink(folder, rank),
            meeting,
            Progress(folder, rank),
            path,
            {**REQUEST, "new": 4, "samples": 2},
        )


def test_the_first_replica_stays_until_the_others_are_done(trained: dict[str, Path]) -> None:
    """Its first rank holds the store, through which the others open their links at the first message."""
    spec = inference(spec_of("llama").model_dump(mode="json"), tp=1, pp=2, dp=2)
    ranks.run(spec, partial(_second_replica_is_late, path=trained["llama"]), ranks.scratch())


def test_logits_are_those_of_training(trained: dict[str, Path]) -> None:
    """The loss of a text computed from the generator's logits, position by position, equals the one of the trainer's
    forward.
    """
    spec = spec_of("llama")

    def losses(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> tuple[float, float]:
        made = Generator(spec, 0, connect(meeting, 0, Layout.of(spec), "gloo"), open_device("cpu"), trained["llama"])

        def use(trainer: Trainer) -> tuple[float, torch.Tensor, torch.Tensor]:
            checkpoint.load(trainer, trained["llama"])
            drawn = trainer.reader.sampler.micro_batches(20, (0,))
            return trainer.step(20).loss, torch.tensor(drawn.inputs[0]), torch.tensor(drawn.targets[0])

        loss, inputs, targets = ranks.with_trainer(spec, rank, meeting, folder, use)
        logits = [made.logits(inputs[:, : n + 1]) for n in range(inputs.shape[1])]
        places = [of_place.log_softmax(-1) for of_place in logits if of_place is not None]
        picked = torch.stack(places, 1).gather(2, targets[..., None])
        return loss, float(-picked.mean())

    trained_loss, found = ranks.run(spec, losses, ranks.scratch())[0]
    assert found == pytest.approx(trained_loss, rel=1e-12)


@pytest.mark.full
def test_command_line_of_any_split(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["generate", str(trained["llama"]), "--prompt", "def ", "--new", "8"]
    assert main(asked) == 0
    alone = capsys.readouterr().out
    for split, texts in ((["--tp", "2"], 1), (["--pp", "2"], 1), (["--dp", "2", "--samples", "3"], 3)):
        assert main([*asked, *split]) == 0
        assert capsys.readouterr().out == texts * alone


def test_a_checkpoint_of_a_run_on_gpus_generates_on_the_cpu_too(
    trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = manifests.read(trained["gpt"])
    path = tmp_path / "kept"
    shutil.copytree(trained["gpt"], path)
    saved = {**found.spec, "train": {**found.spec["train"], "device": "cuda"}}
    (path / manifests.FILE).write_text(replace(found, spec=saved).text())
    assert main(["generate", str(path), "--prompt", "def ", "--new", "2"]) == 1
    assert "No GPU was found on this host; --device cpu" in capsys.readouterr().err
    assert main(["generate", str(path), "--prompt", "def ", "--new", "2", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("def ")


def test_command_line(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(trained["llama"])
    assert main(["generate", path, "--prompt", "def ", "--new", "8", "--tp", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("def ")
    assert "prefill of 4 tokens" in err
    assert "(median of 7)" in err
    assert "keys and values 3 KiB a rank" in err
    for wrong, told in (
        (["--prompt", ""], "the prompt is empty"),
        (["--ids", "300"], "tokens 0 to 255"),
        (["--ids", ""], "--ids are numbers with commas between; got ''"),
        (
            ["--prompt", "\udcff" * 49],
            "the model's sequence is 48 tokens and the prompt has 49",
        ),  # bytes that are no valid text
        (["--prompt", "a", "--new", "99"], "at most 47 can be generated"),
        (["--prompt", "a", "--tp", "3"], "tp=3 does not divide"),
        (
            ["--prompt", "a", "--new", "9", "--dp", "2"],
            "dp: dp=2 replicas share 1 text, and each needs one; use dp=1 or less, or more texts",
        ),
        (["--prompt", "a", "--pp", "9"], "pp=9 is more than the model's 6 cuttable layers; use at most 6"),
    ):
        assert main(["generate", path, *wrong]) == 2
        assert told in capsys.readouterr().err
