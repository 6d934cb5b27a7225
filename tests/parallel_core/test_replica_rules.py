"""Rules for different numbers of replicas per stage: what they exclude, the name of such a run, and its ideal
speedup.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core.plan.strategy import family, ideal_speedup, label
from parallel_core.plan.traffic import comm_volumes
from parallel_core.rules.replicas import advice
from parallel_core.spec import RunSpec, field_errors


def spec_of(replicas: tuple[int, ...] = (2, 1), train: dict[str, Any] | None = None, **split: Any) -> RunSpec:
    parallel = {"schedule": "1f1b-stash", "pp": 2, "replicas": replicas, "micro_batches": 4} | split
    batch = {"global_batch": 16, "clip": "stage"} | (train or {})
    return RunSpec.model_validate({"model": {"layers": 4}, "train": batch, "parallel": parallel})


@pytest.mark.parametrize(
    ("room", "leaf", "value", "field", "message"),
    [
        (
            "parallel",
            "dp",
            2,
            "parallel.replicas",
            "replicas=2-1 says how often each stage is there, and dp=2 says it again; use dp=1, or leave replicas "
            "empty.",
        ),
        (
            "parallel",
            "pp",
            3,
            "parallel.replicas",
            "replicas=2-1 names 2 stages, and pp=3 has 3; use replicas=2,1,1, or pp=2.",
        ),
        (
            "parallel",
            "pp",
            1,
            "parallel.replicas",
            "replicas=2-1 needs a pipeline, and pp=1 is none; use pp=2, or leave replicas empty.",
        ),
        (
            "parallel",
            "schedule",
            "gpipe",
            "parallel.replicas",
            "replicas=2-1 gives micro-batches to replicas in turn, which schedule=gpipe does not; use "
            "schedule=1f1b, or leave replicas empty.",
        ),
        (
            "parallel",
            "micro_batches",
            1,
            "parallel.micro_batches",
            "schedule=1f1b with replicas=2-1 needs at least 2 micro-batches a step, got 1; use micro_batches=2 or "
            "more.",
        ),
        (
            "train",
            "global_batch",
            6,
            "parallel.micro_batches",
            "4 micro-batches do not divide the 6 samples that a step has of global_batch=6; try 2, 3, 6.",
        ),
        (
            "parallel",
            "zero",
            1,
            "parallel.zero",
            "zero=1 cuts a state into equal parts over data-parallel replicas, and replicas=2-1 gives each stage its "
            "own number; use zero=0, or dp=2 in place of replicas.",
        ),
        (
            "model",
            "tied",
            True,
            "model.tied",
            "tied=true pairs each first stage with a last one, and replicas=2-1 pairs none; use tied=false, or dp=2 "
            "in place of replicas.",
        ),
        (
            "model",
            "kind",
            "resnet50",
            "model.kind",
            "kind=resnet50 normalises over the samples of all replicas, and with replicas=2-1 stages would do so "
            "over different ones; use another model, or dp=2 in place of replicas.",
        ),
    ],
)
def test_refused(room: str, leaf: str, value: Any, field: str, message: str) -> None:
    spec: dict[str, dict[str, Any]] = {
        "model": {},
        "parallel": {"pp": 2, "replicas": [2, 1], "micro_batches": 4},
        "train": {"global_batch": 16},
    }
    spec[room][leaf] = value
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(spec)
    assert field_errors(caught.value) == {field: message}


def test_numbers_of_micro_batches_that_are_offered_do() -> None:
    with pytest.raises(ValidationError, match=r"samples that a step has of global_batch=3; try global_batch=4\."):
        spec_of((4, 1), {"global_batch": 3})


def test_2bw_needs_a_step_as_long_as_the_pipeline() -> None:
    with pytest.raises(ValidationError, match="schedule=1f1b-2bw with replicas=3-2 needs at least 4 micro-batches"):
        spec_of((3, 2), {"global_batch": 9}, schedule="1f1b-2bw", micro_batches=3)


def test_names() -> None:
    assert label(spec_of((2, 1))) == "PP-1F1B async, stashed 2-1"
    assert label(spec_of((2, 1, 1), pp=3, schedule="1f1b", tp=2)) == "PP-1F1B 2-1-1 x TP 2"
    assert family(spec_of()) == "combined"


def test_ideal_speedup() -> None:
    """All devices if every replica is always busy; with three micro-batches, the second of two replicas waits for one
    slot.
    """
    assert ideal_speedup(spec_of((2, 1))) == 3
    assert ideal_speedup(spec_of((2, 1), {"global_batch": 12}, micro_batches=3)) == pytest.approx(3 * 3 / 4)
    flushed = ideal_speedup(spec_of((2, 1), {"global_batch": 120}, schedule="1f1b", micro_batches=40))
    assert 2.7 < flushed < 3
    assert advice((2, 1), 4) == "" and "a multiple of 6 keeps all of them busy" in advice((2, 3), 4)


def test_a_rank_talks_to_the_replicas_that_its_micro_batches_go_to() -> None:
    spec = spec_of((2, 1))
    assert [(talk.kind, talk.ranks, talk.calls) for talk in comm_volumes(spec, 2)] == [
        ("before", (0, 1), 4),
        ("before", (0, 1), 4),
    ]
    reduced, *messages = comm_volumes(spec, 1)
    assert (reduced.ranks, reduced.calls) == ((0, 1), 2)
    assert [(talk.ranks, talk.calls) for talk in messages] == [((2,), 2), ((2,), 2)]
