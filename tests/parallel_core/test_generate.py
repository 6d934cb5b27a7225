"""Text from the KV cache equals text generated from the whole sequence: on one device, over tensor ranks, and over
stages.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.analysis.generated import merged, rate, replicas
from parallel_core.engine import checkpoint, host_memory, relay
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous, connect
from parallel_core.engine.drawing import draw
from parallel_core.engine.generator import Generator
from parallel_core.engine.trainer import Trainer
from parallel_core.generation_request import inference
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.generated_texts import MODELS, NEW, REQUEST, generated, spec_of


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.full), 2])
def test_cached_text_is_that_of_the_whole_sequence(model: str, tp: int, trained: dict[str, Path]) -> None:
    drawn: GenerationRequest = {**REQUEST, "temperature": 1.0}
    requests: list[GenerationRequest] = [REQUEST, {**REQUEST, "cached": False}, drawn, {**drawn, "cached": False}]
    every = generated(spec_of(model, tp=tp), trained[model], *requests)
    for rank in every:
        assert [found["tokens"] for found in rank] == [found["tokens"] for found in every[0]]
    likeliest, whole, mixed, whole_mixed = every[0]
    assert (likeliest["tokens"], mixed["tokens"]) == (whole["tokens"], whole_mixed["tokens"])
    assert len(likeliest["tokens"][0]) == NEW
    assert len(set(mixed["tokens"][0])) > NEW // 3
    assert whole["kv_bytes"] == 0


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_no_text(heat: float, bad: float) -> None:
    logits = torch.zeros(3, 8)
    logits[1, 5] = bad
    request: GenerationRequest = {**REQUEST, "samples": 6, "temperature": heat}
    with pytest.raises(FloatingPointError, match="Token 8 of text 5 "):
        draw(logits, 7, request, range(3, 6))


def test_the_lowest_temperature_takes_the_likeliest_token() -> None:
    logits = torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    request: GenerationRequest = {**REQUEST, "samples": 4, "temperature": 1e-310, "top_k": 3}
    assert draw(logits, 0, request, range(4)) == logits.argmax(-1).tolist()


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
    requests: list[GenerationRequest] = [REQUEST, drawn, {**drawn, "cached": False}]
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
        apart = [rate([each]) for each in told]
        assert speed and speed[1] == pytest.approx(sum(one[1] for one in apart if one))


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
