"""Sentence pairs from Django's translation catalogues, and how they are fed to a translation model."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.data import pairs
from parallel_core.data.corpus import CorpusError
from parallel_core.data.pairs import BEGIN, END, PADDING, UNKNOWN, Pairs, parse, sentences, vocabulary
from parallel_core.models.initial import initial
from parallel_core.models.microbatch_context import MicroBatchContext, Sample, follow
from parallel_core.models.registry import build_unit
from parallel_core.spec import ModelSpec

PO = """
#, fuzzy
msgid ""
msgstr "Language: de"

msgid "Yes"
msgstr "Ja"

msgid ""
"two "
"\\"lines\\""
msgstr ""
"zwei "
"Zeilen"

msgid "one thing"
msgid_plural "many things"
msgstr[0] "ein Ding"
msgstr[1] "viele Dinge"

msgid "not translated"
msgstr ""
"""


def test_catalogues_are_parsed() -> None:
    assert parse(PO) == [("Yes", "Ja"), ('two "lines"', "zwei Zeilen")]


def test_sentences_are_real_ones() -> None:
    found = dict(sentences())
    assert len(found) > 500
    assert found["Yes"] == "Ja"
    assert len(sentences()) == len(set(sentences()))


def test_frequent_words_come_first() -> None:
    small, large = vocabulary(20), vocabulary(200)
    assert len(small) == 16
    assert min(small.values()) == 4
    assert all(large[word] == number for word, number in small.items())


def test_the_smallest_vocabulary_is_marks_alone() -> None:
    model = ModelSpec(kind="gnmt", seq=6, vocab=4)
    inputs, targets = Pairs(model.seq, model.vocab).take(np.arange(20))
    assert inputs.max() == targets.max() == UNKNOWN


def test_targets_are_the_next_words_and_padding_does_not_count() -> None:
    data = Pairs(10, 500)
    numbers = np.arange(data.length)
    inputs, targets = data.take(numbers)
    assert (inputs[:, 1, 0] == BEGIN).all()
    counted = targets >= 0
    assert np.array_equal(inputs[:, 1, 1:][counted[:, 1:]], targets[:, :-1][counted[:, 1:]])
    assert data.count(numbers) == counted.sum()
    ended = ~counted[:, -1]
    last = counted.sum(1) - 1
    assert (targets[ended, last[ended]] == END).all()
    assert (inputs[:, 0, 0] != PADDING).all()


def test_reading_them_does_not_import_django() -> None:
    code = "import sys; from parallel_core.data.pairs import Pairs; Pairs(8, 50); sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_django_the_corpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs.importlib.util, "find_spec", lambda name: None)
    sentences.cache_clear()
    with pytest.raises(CorpusError, match="install django"):
        sentences()


def _encoded_context(source: list[int], x: torch.Tensor) -> torch.Tensor:
    model = ModelSpec(kind="gnmt", layers=1, hidden=8, seq=4, vocab=30)
    unit = build_unit(model, "block.1.decoder", torch.float64, "cpu")
    for name, parameter in unit.named_parameters():
        parameter.data.copy_(initial(model, 3, f"block.1.decoder.{name}", tuple(parameter.shape)))
    inputs = torch.tensor([[source, [BEGIN, 5, 6, 7]]])
    passing = MicroBatchContext(0, sample=Sample(inputs, inputs[:, 1]))
    follow(unit, passing)
    out: Any = unit(x)
    return out[..., 8:]


def test_attention_looks_at_words_not_at_padding() -> None:
    x = torch.randn(1, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[:, 2:] += 1
    assert torch.equal(_encoded_context([9, 8, PADDING, PADDING], x), _encoded_context([9, 8, PADDING, PADDING], other))
    assert not torch.equal(_encoded_context([9, 8, 7, 6], x), _encoded_context([9, 8, 7, 6], other))
