"""Samples held out of training: none is drawn, each is read once in an evaluation, and a corpus spares enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.data import corpus
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset
from parallel_core.data.held_out import HeldOutBatches
from parallel_core.data.sampler import Sampler
from parallel_core.data.tokens import Tokens
from parallel_core.plan.evaluations import evaluations
from parallel_core.spec import RunSpec
from tests.parallel_core.test_evaluation import MODEL, spec_of


def test_no_step_draws_what_is_held_out() -> None:
    text = np.arange(16 * 40 + 1, dtype=np.int64) % 251
    spec = spec_of({"eval_samples": 30}, MODEL | {"vocab": 256})
    tokens = Tokens(16, 256, text.astype(np.uint8))
    held = tokens.hold_out(30)
    read = {token for first in held.numbers for token in range(first, first + 17)}
    assert len(read) == 30 * 16 + 1 and max(read) == len(text) - 1
    sampler = Sampler(spec, tokens)
    drawn = np.concatenate([sampler.numbers(step) for step in range(200)])
    assert not read & {token for first in set(drawn.tolist()) for token in range(first, first + 17)}
    assert set(drawn.tolist()) == set(range(held.before))


def test_without_evaluations_the_samples_are_the_same_as_ever() -> None:
    dataset = Tokens(16, 64, np.frombuffer(corpus.open("stdlib")[:4096].tobytes(), np.uint8))
    off = Sampler(spec_of({"eval_every": 0}), dataset)
    key = np.array([off.seed, 3], dtype=np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).integers(0, dataset.length, size=8)
    assert off.numbers(3).tolist() == expected.tolist()


def test_all_samples_are_read_once_whatever_the_batch() -> None:
    dataset = Tokens(16, 256, np.arange(4096, dtype=np.int64).astype(np.uint8))
    wanted = sorted(map(bytes, dataset.take(dataset.hold_out(11).numbers)[0].astype(np.uint8)))
    for train, parallel in (({}, {"dp": 2, "micro_batches": 2}), ({"global_batch": 64}, {"dp": 4, "micro_batches": 4})):
        spec = spec_of({**train, "eval_samples": 11}, MODEL | {"vocab": 256}, **parallel)
        batches, read, ran = HeldOutBatches(spec, dataset), list[bytes](), 0
        for number in range(batches.rounds):
            count = batches.micro_batches(number)
            assert count % spec.parallel.dp == 0  # every replica has as many
            inputs, targets = batches.take(number, tuple(range(count)))
            ran += count
            for sample, target in zip(inputs.reshape(-1, 16), targets.reshape(-1, 16), strict=True):
                assert (target < 0).all() or (target >= 0).all()
                if target[0] >= 0:
                    read.append(bytes(sample.astype(np.uint8)))
        assert sorted(read) == wanted and batches.targets == 11 * 16
        assert ran * spec.micro_batch_size < 11 + spec.micro_batch_size * spec.parallel.dp


@pytest.mark.parametrize(
    ("kind", "name", "most"), [("mlp", "digits", 1796), ("gpt", "blob", 61), ("gnmt", "django", 0)]
)
def test_more_than_the_corpus_can_spare_is_refused(kind: str, name: str, most: int, tmp_path: Path) -> None:
    model = {"kind": kind} if kind == "mlp" else {"kind": kind, "seq": 16, "vocab": 256}
    train: dict[str, Any] = {"eval_every": 1, "corpus": name}
    if name == "blob":
        (tmp_path / ("0" * 64)).write_bytes(bytes(1000))
        train["corpus"] = "blob:" + "0" * 64
    spec = RunSpec.model_validate({"model": model, "train": train | {"eval_samples": 60_000}})
    dataset = open_dataset(spec, tmp_path)
    with pytest.raises(CorpusError) as refused:
        Sampler(spec, dataset)
    most = most or dataset.length - 1
    assert f"use at most train.eval_samples={most}." in str(refused.value)
    held = spec.train.model_copy(update={"eval_samples": most})
    assert Sampler(spec.model_copy(update={"train": held}), dataset).numbers(0).max() <= dataset.length


@pytest.mark.parametrize("every", [1, 3, 5, 20])
@pytest.mark.parametrize("steps", [1, 5, 6])
def test_evaluations_to_come_are_counted(every: int, steps: int) -> None:
    due = [step for step in range(steps) if not (step + 1) % every or step + 1 == steps]
    for done in range(steps + 2):
        assert evaluations(every, steps, done) == sum(step >= done for step in due)
    assert evaluations(0, steps) == 0
