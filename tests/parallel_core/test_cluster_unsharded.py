"""What ZeRO has unsharded for a moment: the gradients of the layer whose backward runs, and gathered weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel_core.plan.cluster import memory
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import Transformer, presets
from parallel_core.plan.cluster.plans import Plan, Plans

LLAMA = presets()["llama-8b"]
FEW_WORDS = replace(LLAMA, vocab=1024)


def buffers(model: Transformer, adapters: int = 0, tp: int = 1, state: int = 18) -> list[float]:
    """Of each ZeRO stage, less those without ZeRO, in bytes."""
    plans = Plans.of([Plan(dp=8, tp=tp, zero=zero, state=state) for zero in range(4)])
    found = memory.of(Job(model, 64, adapters=adapters), plans).buffers
    return [float(each - found[0]) for each in found]


def test_the_gradients_of_a_layer_are_whole_until_they_are_scattered() -> None:
    """4 bytes each with ZeRO-2 and 3, and with ZeRO-3 two layers' weights of 2 bytes."""
    layer = FEW_WORDS.layer_matrices + FEW_WORDS.layer_vectors
    assert buffers(FEW_WORDS) == pytest.approx([0, 0, 4 * layer, (4 + 2 * 2) * layer])
    assert buffers(FEW_WORDS, tp=2) == pytest.approx([0, 0, 4 * layer / 2, (4 + 2 * 2) * layer / 2])
    assert buffers(FEW_WORDS, state=20)[2] == pytest.approx(2 * layer)


def test_the_output_layer_may_be_the_largest() -> None:
    """Llama 3 8 B: 525 million parameters, and 218 million in a layer."""
    layer, head = LLAMA.layer_matrices + LLAMA.layer_vectors, LLAMA.embedding
    assert head > 2 * layer
    assert buffers(LLAMA) == pytest.approx([0, 0, 4 * head, 6 * head + 2 * layer])


def test_a_frozen_base_has_no_gradients() -> None:
    layer, job = FEW_WORDS.layer_matrices + FEW_WORDS.layer_vectors, Job(FEW_WORDS, 64, adapters=8)
    learning = 4 * layer * job.trained
    assert learning < 0.1 * layer
    assert buffers(FEW_WORDS, 8) == pytest.approx([0, 0, learning, learning + 2 * 2 * layer])
