"""Corpora and the sampler."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from parallel_core.data import corpus, dataset
from parallel_core.data.corpus import CorpusError
from parallel_core.data.sampler import Sampler
from parallel_core.data.tokens import Tokens
from parallel_core.layout import Layout
from parallel_core.outline import BUILT_IN_CORPORA, FILE_CORPORA, KINDS
from parallel_core.spec import RunSpec

CORPORA = sorted({(kind, name) for kind, outline in KINDS.items() for name in outline.corpora})
TEXT = np.frombuffer(bytes(range(256)) * 20, dtype=np.uint8)


def spec_of(vocab: int = 256, seed: int = 7, **parallel: int) -> RunSpec:
    return RunSpec.model_validate(
        {"model": {"seq": 16, "vocab": vocab}, "train": {"global_batch": 8, "seed": seed}, "parallel": parallel}
    )


def sampler_of(spec: RunSpec, text: np.ndarray = TEXT) -> Sampler:
    return Sampler(spec, Tokens(spec.model.seq, spec.model.vocab, text))


def _global_batch(spec: RunSpec, step: int = 3) -> np.ndarray:
    """All replicas' samples in global order, (global_batch, seq + 1)."""
    sampler, layout = sampler_of(spec), Layout.of(spec)
    parts: dict[int, np.ndarray] = {}
    for replica in range(layout.dp):
        ids = layout.micro_batches_of(0, replica)
        drawn = sampler.micro_batches(step, ids)
        assert np.array_equal(drawn.inputs[..., 1:], drawn.targets[..., :-1])
        assert drawn.global_count == spec.tokens_per_step
        tokens = np.concatenate([drawn.inputs, drawn.targets[..., -1:]], axis=-1)
        parts |= dict(zip(ids, tokens, strict=True))
    return np.concatenate([parts[i] for i in sorted(parts)])


@pytest.mark.parametrize(
    "split", [{"dp": 2}, {"micro_batches": 4}, {"dp": 4, "micro_batches": 2}, {"pp": 2, "micro_batches": 8}]
)
def test_global_batch_is_the_same_under_every_layout(split: dict[str, int]) -> None:
    assert np.array_equal(_global_batch(spec_of(**split)), _global_batch(spec_of()))


def test_batch_changes_with_step_and_seed() -> None:
    assert not np.array_equal(_global_batch(spec_of(), 3), _global_batch(spec_of(), 4))
    assert not np.array_equal(_global_batch(spec_of()), _global_batch(spec_of(seed=8)))


def test_samples_are_stretches_of_the_corpus() -> None:
    batch = _global_batch(spec_of())
    assert np.array_equal(np.diff(batch, axis=1) % 256, np.ones((8, 16)))


def test_small_vocabulary_takes_the_remainder() -> None:
    batch = _global_batch(spec_of(vocab=64))
    assert np.array_equal(batch, _global_batch(spec_of()) % 64)


def test_shortest_corpus_is_one_sequence() -> None:
    assert sampler_of(spec_of(), TEXT[:17]).micro_batches(0, (0,)).inputs.shape == (1, 8, 16)
    with pytest.raises(CorpusError, match="16 bytes; one sequence needs 17"):
        sampler_of(spec_of(), TEXT[:16])


def test_standard_library_reads_the_same_cached_or_not(tmp_path: Path) -> None:
    fresh = corpus.open("stdlib")
    cached = corpus.open("stdlib", tmp_path)
    again = corpus.open("stdlib", tmp_path)
    assert len(fresh) > 1_000_000
    assert np.array_equal(fresh, cached)
    assert np.array_equal(fresh, again)
    assert [path.name for path in tmp_path.iterdir()] == [next(tmp_path.glob("stdlib-*")).name]


def test_sources_are_the_modules_of_a_folder_then_those_of_its_packages(tmp_path: Path) -> None:
    """In an order that is the same on all hosts, and without what is not the same on them."""
    for name in ("b.py", "a.py", "notes.txt", "pkg/c.py", "pkg/data.json", "tests/d.py", "config-3/e.py", "z.py/f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in corpus._sources(tmp_path)]
    assert found == ["a.py", "b.py", "pkg/c.py", "z.py/f.py"]


def test_a_full_disk_keeps_nothing_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpus, "_read_stdlib", full)
    with pytest.raises(OSError, match="No space left"):
        corpus.open("stdlib", tmp_path)
    assert not list(tmp_path.iterdir())


def test_blob_is_read_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / ("a" * 64)).write_bytes(b"some text")
    assert bytes(corpus.open(f"blob:{'a' * 64}", tmp_path)) == b"some text"


def test_missing_and_empty_blobs_are_refused(tmp_path: Path) -> None:
    (tmp_path / ("b" * 64)).touch()
    with pytest.raises(CorpusError, match="is empty"):
        corpus.open(f"blob:{'b' * 64}", tmp_path)
    with pytest.raises(CorpusError, match="not in this worker's cache"):
        corpus.open(f"blob:{'c' * 64}", tmp_path)


def test_every_corpus_of_a_kind_of_model_has_an_opener() -> None:
    assert {name for _, name in CORPORA} == set(dataset.OPENERS), "give it an opener in parallel_core/data/dataset.py"
    assert set(BUILT_IN_CORPORA) == set(dataset.OPENERS) - {"blob", *FILE_CORPORA}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in CORPORA if name in BUILT_IN_CORPORA])
def test_a_built_in_corpus_gives_samples_of_its_kind(kind: str, name: str, tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"model": {"kind": kind}, "train": {"corpus": name}})
    inputs, targets = dataset.open_dataset(spec, tmp_path).take(np.arange(2))
    assert len(inputs) == len(targets) == 2


def test_the_corpus_and_not_the_kind_of_model_says_which_dataset_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Tokens(16, 256, TEXT)
    monkeypatch.setitem(dataset.OPENERS, "second", lambda spec, cache: second)
    image = RunSpec.model_validate({"model": {"kind": "mlp"}})
    named, wrong = (
        image.model_copy(update={"train": image.train.model_copy(update={"corpus": name})}) for name in ("second", "x")
    )
    assert dataset.open_dataset(named) is second
    with pytest.raises(CorpusError, match=r"corpus x is not known here; train\.corpus is one of stdlib, "):
        dataset.open_dataset(wrong)
