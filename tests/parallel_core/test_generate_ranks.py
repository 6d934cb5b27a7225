"""What ranks that generate text report besides it: bytes, spans, progress and memory; and when they end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_core.analysis.generated import PER_TOKEN, Generated, parts
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous, connect, disconnect
from parallel_core.engine.generate import run_rank
from parallel_core.engine.generator import Generator
from parallel_core.engine.interference import Interference
from parallel_core.generation_request import inference
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path, last_of
from parallel_core.plan.generation import by_place
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.generated_texts import MODELS, NEW, PROMPT, REQUEST, generated, spec_of


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
            "token 1 of 3": layers,
            "token 2 of 3": layers,
            "token 3 of 3": layers,
            "measuring memory": metered * layers,
        }


def _expecting(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, path: Path, digits: str) -> tuple[Any, str]:
    """What the rank says that it read, and why it ended if it generated nothing."""
    sink, expects, why = FileSink(folder := ranks.scratch(), rank), {"checkpoint": digits} if digits else {}, ""
    try:
        run_rank(spec, rank, sink, meeting, Progress(folder, rank), path, {**REQUEST, "new": 2}, expects)
    except CheckpointError as error:
        why = str(error)
    return (last_of(folder, rank, "hello") or {}).get("reads"), why


def test_a_later_attempt_generates_from_no_other_checkpoint(trained: dict[str, Path], tmp_path: Path) -> None:
    """The run that saved it may have gone on from an earlier step, and saved this one again."""
    manifest = manifests.read(trained["gpt"])
    changed = replace(manifest, tensors={**manifest.tensors, "value/gone": manifest.tensors["value/head.norm.weight"]})
    assert changed.content != manifest.content == replace(manifest, held_out=1.0, attempt=7).content
    turns = [partial(_expecting, path=trained["gpt"], digits=digits) for digits in ("", manifest.content, "0" * 16)]
    first, again, other = (each[0] for each in ranks.run_each([(spec_of("gpt"), work) for work in turns]))
    assert first == again == ({"checkpoint": manifest.content}, "")
    assert other[0] is None and f"is {manifest.content}, and was {'0' * 16}. Generate from it in a new run" in other[1]


@pytest.mark.parametrize("tied", [False, True])
def test_stages_of_a_large_vocabulary_share_its_memory(tied: bool) -> None:
    """By FLOPs, the stage of the head would have no other layer, and the first one nearly all caches."""
    model = {"hidden": 128, "layers": 4, "vocab": 8192, "tied": tied}
    saved = RunSpec.model_validate({"model": model}).model_dump(mode="json")
    request: GenerationRequest = {**REQUEST, "samples": 1}
    first, last = by_place(inference(saved, 1, 2), request)
    assert first.activations == last.activations > 0
    assert max(first.total, last.total) < 1.1 * min(first.total, last.total)


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


@pytest.mark.parametrize(("temperature", "top_k", "each"), [(0.8, 0, 28), (0.8, 5, 28), (0.0, 0, 12)])
def test_memory_of_what_chooses_a_token_is_what_is_predicted(
    temperature: float, top_k: int, each: int, trained: dict[str, Path]
) -> None:
    """Tokens are drawn by sums of float64, 7 times the logits, and tensor ranks gather them: 3 times, and 2 were
    predicted of both."""
    more: Any = {"prompt": [1], "samples": 64, "temperature": temperature, "top_k": top_k}
    request: GenerationRequest = {**REQUEST, **more}
    spec = spec_of("gpt", tp=2)
    (predicted,) = by_place(spec, request)
    assert predicted.buffers >= 64 * spec.model.vocab * each
    for peak in _metered(spec, trained["gpt"], request):
        assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_that_are_not_trained_have_no_gradients(precision: str, trained: dict[str, Path]) -> None:
    """They would take two thirds of the memory in 16 bits, and no prediction counts them."""
    told = spec_of("gpt").model_dump()
    spec = RunSpec.model_validate(told | {"train": told["train"] | {"precision": precision}})
    meter = MemoryMeter()
    with meter.measure():
        made = Generator(spec, 0, Groups(), open_device("cpu"), trained["gpt"])
    assert 0 < made.flat.values.nbytes <= sum(meter.final.values()) < 1.01 * made.flat.values.nbytes


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


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2}], ids=str)
def test_spans_say_where_the_time_of_each_token_goes(split: dict[str, Any], trained: dict[str, Path]) -> None:
    spec = spec_of("gpt", **split)
    every = [found[0] for found in generated(spec, trained["gpt"], REQUEST)]
    for told in every:
        assert len(told["collective"]) == len(told["p2p"]) == len(told["seconds"]) == NEW - 1
        assert all(value > 0 for value in told["collective"]) == ("tp" in split)
        assert all(value > 0 for value in told["p2p"]) == ("pp" in split)
        assert all(
            took >= inside + waited for took, inside, waited in zip(*(told[name] for name in PER_TOKEN), strict=True)
        )
    found = parts(dict(enumerate(every)), Layout.of(spec))
    assert found is not None and found.compute > 0 and (found.communication > 0) >= ("tp" in split)


def _summaries(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, path: Path) -> list[dict[str, Any]]:
    request: GenerationRequest = {**REQUEST, "new": 3, "samples": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interference, "own_share", lambda self: 0.25 * rank)
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), path, request)
    return [frame.header for frame in read_file(events_path(folder, rank)) if frame.kind == "summary"]


def test_each_rank_reports_how_much_of_its_device_others_used(trained: dict[str, Path]) -> None:
    spec = inference(spec_of("gpt").model_dump(mode="json"), tp=1, dp=2)
    found = ranks.run(spec, partial(_summaries, path=trained["gpt"]), ranks.scratch())
    assert [[header["cpu_others"] for header in own] for own in found] == [[0.0], [0.25]]
