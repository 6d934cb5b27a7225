"""Low-rank adapters on a frozen base model in the planner: their size, what they save, and that plans without are
unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel_core.plan.cluster import memory, step
from parallel_core.plan.cluster.hardware import clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.problems import Unphysical
from parallel_core.plan.cluster.search import search
from parallel_core.plan.cluster.verdict import judge

LLAMA = presets()["llama-70b"]
FULL, LOW = Job(LLAMA, 64), Job(LLAMA, 64, adapters=16)
NODE = replace(clusters()["selene"], devices=8)
PLANS = Plans.of([Plan(tp=8), Plan(dp=2, tp=4), Plan(tp=2, pp=4), Plan(dp=8, zero=3)])


def test_adapters_have_the_published_number_of_elements() -> None:
    """Hu et al. 2021: r (in + out) elements a matrix. GPT-3 at rank 4 with adapters on queries and values only: 2 x 4 x
    2 x 12288 a layer.
    """
    gpt = presets()["gpt-175b"]
    assert gpt.adapter(4) == 4 * (4 * 2 * gpt.hidden + 2 * 5 * gpt.hidden)
    assert LLAMA.adapter(16) == 16 * (4 * 8192 + 2 * (8192 + 1024) + 3 * (8192 + 28672))
    assert LOW.trained < 0.01 and FULL.trained == 1.0


def test_state_of_the_frozen_base_is_its_weights_alone() -> None:
    full, low = memory.of(FULL, PLANS), memory.of(LOW, PLANS)
    assert low.params == pytest.approx(full.params, rel=0.01)
    assert all(low.grads + low.optimizer < 0.02 * (full.grads + full.optimizer))
    assert low.activations == pytest.approx(full.activations)


def test_frozen_matrices_have_no_weight_gradient() -> None:
    full, low = step.of(FULL, NODE, PLANS), step.of(LOW, NODE, PLANS)
    # norms and the like still have their gradients
    assert all(low.compute / full.compute > 2 / 3) and all(low.compute / full.compute < 0.78)
    assert all(low.optimizer < 0.02 * full.optimizer)
    assert low.gradients[1] < 0.05 * full.gradients[1]


def test_a_host_trains_adapters_of_a_model_that_it_cannot_train_whole() -> None:
    gpt = presets()["gpt-175b"]
    low = Job(gpt, 64, adapters=16)
    assert not search(Job(gpt, 64), NODE).timed
    found = search(low, NODE)
    assert found.timed
    judged = judge(low, NODE, found.plans.row(found.best()[0]))
    assert judged.fits and judged.seconds


def test_a_rank_that_cannot_be_is_refused() -> None:
    for rank in (-1, LLAMA.hidden + 1):
        with pytest.raises(Unphysical, match="adapters"):
            search(Job(LLAMA, 64, adapters=rank), NODE)
