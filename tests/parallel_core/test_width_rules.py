"""Rules for different numbers of tensor ranks per stage: what they exclude, the name of such a run, and its ideal
speedup.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core.faults.slow_link import neighbours
from parallel_core.plan.peak import by_stage, predict
from parallel_core.plan.strategy import family, ideal_speedup, label
from parallel_core.spec import RunSpec, field_errors


def spec_of(model: dict[str, Any] | None = None, **split: Any) -> RunSpec:
    parallel = {"pp": 2, "micro_batches": 4, "widths": (1, 2)} | split
    return RunSpec.model_validate(
        {"model": {"layers": 4} | (model or {}), "parallel": parallel, "train": {"global_batch": 16}}
    )


@pytest.mark.parametrize(
    ("model", "split", "field", "message"),
    [
        (
            {},
            {"tp": 2},
            "parallel.widths",
            "widths=1-2 says how many tensor ranks each stage has, and tp=2 says it again; use tp=1, or leave "
            "widths empty.",
        ),
        (
            {},
            {"pp": 3},
            "parallel.widths",
            "widths=1-2 names 2 stages, and pp=3 has 3; use widths=1,2,1, or pp=2.",
        ),
        (
            {},
            {"pp": 1},
            "parallel.widths",
            "widths=1-2 needs a pipeline, and pp=1 is none; use pp=2, or leave widths empty.",
        ),
        (
            {},
            {"sequence": True},
            "parallel.sequence",
            "sequence=true splits what stages hand on over tensor ranks, and widths=1-2 gives each stage its own "
            "number; use sequence=false, or tp=2 in place of widths.",
        ),
        (
            {"tied": True},
            {},
            "model.tied",
            "tied=true cuts the matrix of first and last stage alike, and widths=1-2 does not; use tied=false, or "
            "widths=1,1.",
        ),
        (
            {},
            {"widths": (1, 3)},
            "parallel.widths",
            "widths=1-3 has 3 tensor ranks in a stage, which does not divide heads=4; use widths=1,2, or leave widths "
            "empty.",
        ),
        (
            {"kind": "mlp"},
            {},
            "parallel.widths",
            "widths=1-2 is not possible with kind=mlp: the MLP's layers are not split over tensors; leave widths "
            "empty.",
        ),
        ({}, {"widths": (0, 2)}, "parallel.widths.0", "Must be at least 1; got 0."),
    ],
)
def test_refused(model: dict[str, Any], split: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec_of(model, **split)
    assert field_errors(caught.value) == {field: message}


def test_names() -> None:
    assert label(spec_of()) == "TP 1-2 x PP-1F1B 2"
    assert label(spec_of(dp=2, zero=1)) == "DP 2 x TP 1-2 x PP-1F1B 2 + ZeRO-1"
    assert label(spec_of(replicas=(2, 1))) == "PP-1F1B 2-1 x TP 1-2"
    assert family(spec_of()) == "combined"
    assert ideal_speedup(spec_of(micro_batches=16)) == pytest.approx(3 * 16 / 17)
    assert ideal_speedup(spec_of(dp=2)) == pytest.approx(6 * 4 / 5)


def test_a_tied_matrix_may_lie_on_two_equal_ends() -> None:
    assert spec_of({"tied": True}, pp=3, widths=(2, 1, 2)).parallel.world == 5
    assert spec_of({"tied": True}, schedule="zb-v").parallel.world == 3


def test_a_wider_stage_holds_less() -> None:
    wide, narrow = (by_stage(spec_of(widths=widths, cuts=(5,)))[1] for widths in ((1, 2), (1, 1)))
    assert 0.5 * narrow.params <= wide.params < 0.6 * narrow.params
    assert wide.activations < narrow.activations
    assert [memory.stage for memory in predict(spec_of(replicas=(2, 1), widths=(1, 2)))] == [0, 0, 1, 1]


def test_messages_are_late_where_there_are_any() -> None:
    assert [neighbours(spec_of(replicas=(2, 1)), rank) for rank in range(4)] == [[2, 3], [2, 3], [0, 1], [0, 1]]
    assert [neighbours(spec_of(widths=(4, 2)), rank) for rank in (0, 3, 4)] == [[4], [5], [0, 2]]
