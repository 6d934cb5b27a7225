"""Every layout computes what one process computes, within the bounds of `parity`.

The reference runs the same layers on the whole batch. All cases with the same number of ranks train in one launch.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec
from tests.parallel_core.parity import TRAIN, Launches, assert_equal, reference, spec_of, train

Case = dict[str, Any]
"""Fields of ParallelSpec; and of ModelSpec `tied` (embedding and head share their weight) and `attention`."""

PLAIN = [name for name, its in TRAITS.items() if its.sync == "flush" and its.most == 1 and not its.split]
"""Schedules with one stage per rank and an unsplit backward; `test_parity_schedules` covers the others."""


def _boxes() -> dict[str, Case]:
    """{dp, tp, pp in 1, 2} on at most 4 ranks x schedules (which differ only with a pipeline) x recomputation."""
    cases = {}
    for dp, tp, pp in product((1, 2), repeat=3):
        if dp * tp * pp > 4:
            continue
        for schedule, recompute in product(PLAIN if pp > 1 else ("1f1b",), ("none", "full")):
            split = {"dp": dp, "tp": tp, "pp": pp, "schedule": schedule, "recompute": recompute}
            cases[f"{dp}-{tp}-{pp}-{schedule}-{recompute}"] = split | {"micro_batches": 4 // dp}
    return cases


def _tied() -> dict[str, Case]:
    return {
        f"tied-{dp}-{tp}-{pp}-{recompute}": {
            "tied": True,
            "dp": dp,
            "tp": tp,
            "pp": pp,
            "micro_batches": 2,
            "recompute": recompute,
        }
        for dp, tp, pp in ((1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1))
        for recompute in ("none", "full")
    }


def _uneven() -> dict[str, Case]:
    """Cuts (2,) and (4,) separate the attention and MLP of a block; (1,) and (5,) leave a stage with one layer."""
    two = {
        f"cut-{cut}-{recompute}": {"pp": 2, "cuts": (cut,), "micro_batches": 4, "recompute": recompute}
        for cut in (2, 4, 1, 5)
        for recompute in ("none", "full")
    }
    return two | {"cut-2-3": {"pp": 3, "cuts": (2, 3), "micro_batches": 4}}


def _selective() -> dict[str, Case]:
    """Recomputation of attention cores only, or of some layers: with tensor parallelism, data parallelism, and a block
    cut in two.
    """
    some = {"recompute": "full", "recompute_layers": (1,)}
    return {
        "selective-tp": {"tp": 2, "micro_batches": 2, "recompute": "selective"},
        "selective-cut": {"pp": 2, "cuts": (2,), "micro_batches": 4, "recompute": "selective"},
        "some-tp": {"tp": 2, "micro_batches": 2, **some},
        "some-cut": {"pp": 2, "cuts": (2,), "micro_batches": 4, **some},
        "some-selective": {"dp": 2, "micro_batches": 2, "recompute": "selective", "recompute_layers": (0,)},
        "plain": {"tp": 2, "attention": "plain", "micro_batches": 2},
        "plain-selective": {"pp": 2, "attention": "plain", "micro_batches": 2, "recompute": "selective"},
    }


def _sequence() -> dict[str, Case]:
    """Sequence parallelism with rows divided within a sample and between samples, over 2 and 4 ranks, combined with
    features that work on rows.
    """
    two = {"tp": 2, "sequence": True}
    return {
        "rows-2": {**two, "micro_batches": 8},
        "rows-2-whole-samples": {**two, "micro_batches": 2, "recompute": "full"},
        "rows-4": {"tp": 4, "sequence": True, "micro_batches": 4, "recompute": "selective"},
        "rows-tied": {**two, "pp": 2, "micro_batches": 4, "tied": True},
        "rows-split-backward": {**two, "pp": 2, "micro_batches": 4, "schedule": "zb-h1"},
        "rows-cut": {**two, "pp": 2, "cuts": (2,), "micro_batches": 2, "recompute": "full"},
    }


def _columns() -> dict[str, Case]:
    """Every linear layer split by columns, over 2 and 4 ranks, combined with every feature that interacts with it."""
    two: Case = {"tp": 2, "tensor_split": "columns"}
    pipeline: Case = {**two, "pp": 2, "micro_batches": 4}
    return {
        "columns-2": {**two, "micro_batches": 4},
        "columns-recomputed": {**two, "micro_batches": 2, "recompute": "full"},
        "columns-4-selective": {**two, "tp": 4, "micro_batches": 2, "recompute": "selective"},
        "columns-plain": {**two, "attention": "plain", "micro_batches": 2},
        "columns-data": {**two, "dp": 2, "micro_batches": 2, "tied": True},
        "columns-tied": {**pipeline, "tied": True, "schedule": "zb-v"},
        "columns-split-backward": {**pipeline, "schedule": "zb-h1"},
        "columns-cut": {**pipeline, "cuts": (2,), "recompute": "full", "schedule": "gpipe"},
        "columns-1x2,1x1": {**pipeline, "tp": 1, "widths": (2, 1), "schedule": "interleaved"},
    }


def _round_robin() -> dict[str, Case]:
    """Stages with different numbers of replicas; eight micro-batches are not divisible by three."""
    return {
        "replicas-2-1": {"pp": 2, "replicas": (2, 1), "micro_batches": 4},
        "replicas-1-2": {"pp": 2, "replicas": (1, 2), "micro_batches": 2, "recompute": "full"},
        "replicas-1-2-1": {"pp": 3, "replicas": (1, 2, 1), "micro_batches": 4, "cuts": (2, 3)},
        "replicas-3-1": {"pp": 2, "replicas": (3, 1), "micro_batches": 8},
    }


def _widths() -> dict[str, Case]:
    """Stages with different numbers of tensor ranks, and of replicas, combined with features that cross their
    boundary.
    """
    two: Case = {"pp": 2, "micro_batches": 4}
    return {
        "1x2,1x1": {**two, "widths": (2, 1)},
        "1x1,1x2": {**two, "widths": (1, 2), "cuts": (2,), "recompute": "full", "schedule": "gpipe"},
        "2x1,1x2": {**two, "replicas": (2, 1), "widths": (1, 2)},
        "1x2,2x1": {**two, "replicas": (1, 2), "widths": (2, 1), "recompute": "selective"},
        "1x1,1x2,1x1": {"pp": 3, "widths": (1, 2, 1), "micro_batches": 4, "tied": True},
        "1x2,1x1-split-backward": {**two, "widths": (2, 1), "schedule": "zb-h1"},
        "1x1,1x2-in-rounds": {**two, "widths": (1, 2), "schedule": "interleaved"},
        "1x2,1x1-in-a-v": {**two, "widths": (2, 1), "schedule": "zb-v", "tied": True},
    }


CASES = _boxes() | _tied() | _uneven() | _selective() | _sequence() | _columns() | _round_robin() | _widths()
_MODEL = ("tied", "attention")


def _spec(case: Case) -> RunSpec:
    model = {key: value for key, value in case.items() if key in _MODEL}
    return spec_of(model, **{key: value for key, value in case.items() if key not in _MODEL})


TRAINED = Launches(CASES, lambda name: _spec(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_equals_one_process(name: str) -> None:
    assert_equal(TRAINED[name], reference(tied=CASES[name].get("tied", False)))


def test_without_clipping() -> None:
    assert_equal(train(spec_of({}, {"clip_norm": None}, dp=2, pp=2, micro_batches=2)), reference(clip=None))


def test_eight_ranks() -> None:
    """2 x 2 x 2 ranks with 1F1B and recomputation."""
    split: dict[str, Any] = {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "recompute": "full"}
    assert_equal(train(spec_of({"tied": True}, **split)), reference(tied=True))


def test_norm_has_the_same_bits_under_every_cut() -> None:
    """Where layers are placed must not change the norm: its parts are added in parameter order, not in rank order."""
    placements: list[dict[str, Any]] = [{"pp": 1}, *({"pp": 2, "cuts": (cut,)} for cut in (1, 2, 4))]
    norms = [train(spec_of({}, {"precision": "fp32"}, micro_batches=2, **placed)).norms for placed in placements]
    assert all(other == norms[0] for other in norms)


def test_clipping_is_at_work() -> None:
    """Guards the other tests: since they compare clipped gradients, they would not notice if clipping were never
    applied.
    """
    seen = reference()
    for norm, grads in zip(seen.norms, seen.grads, strict=True):
        assert norm > TRAIN["clip_norm"]
        clipped = np.sqrt(sum(float(np.square(value).sum()) for value in grads.values()))
        assert clipped == pytest.approx(TRAIN["clip_norm"], rel=1e-5)
