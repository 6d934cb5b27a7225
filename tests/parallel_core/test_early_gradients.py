"""Early gradients: a stage sends the gradient of its input before it computes the gradients of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core import schedule
from parallel_core.local import LocalRunner
from parallel_core.plan.strategy import idle_share, label
from parallel_core.schedule.check import check
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.passes.early_gradients import hand_back
from parallel_core.schedule.traits import takes_early_gradients
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import ParallelSpec, RunSpec, field_errors

WHOLE = ("naive", "gpipe", "1f1b", "interleaved", "looped-bfs")
SMALL = {"model": {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}}


def spec(train: dict[str, Any] | None = None, **split: Any) -> RunSpec:
    sizes = {"global_batch": 16, "steps": 10, "warmup_steps": 1, **(train or {})}
    return RunSpec.model_validate({**SMALL, "parallel": split, "train": sizes, "trace": {"fingerprint_every": 5}})


@pytest.mark.parametrize("name", WHOLE)
def test_every_backward_but_the_first_stages_is_in_two_with_the_message_between(name: str) -> None:
    made = schedule.build(spec(pp=2, schedule=name, micro_batches=4, early_gradients=True))
    check(made)
    own = [op for program in made.programs for op in program]
    assert {op.kind for op in own if op.stage == 0} & {Kind.B, Kind.W, Kind.BW} == {Kind.BW}
    assert not any(op.kind is Kind.BW for op in own if op.stage)
    for program in made.programs:
        for i, op in enumerate(program):
            if op.kind is Kind.W:
                between = program[i - 1].kind is Kind.SEND_GRAD
                b = program[i - 2] if between else program[i - 1]
                assert (b.kind, b.stage, b.micro_batch) == (Kind.B, op.stage, op.micro_batch)
                assert between or made.placement[op.stage] == made.placement[op.stage - 1]


@pytest.mark.parametrize("name", WHOLE)
def test_the_order_of_work_stays(name: str) -> None:
    plain = schedule.compute_only(name, 4, 8)
    parted = hand_back(plain)
    for before, after in zip(plain.programs, parted.programs, strict=True):
        kept = [(op.stage, op.micro_batch, op.kind is Kind.F) for op in after if op.kind is not Kind.W]
        assert kept == [(op.stage, op.micro_batch, op.kind is Kind.F) for op in before]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 4), (4, 8), (4, 3), (8, 16)])
def test_of_the_bubble_a_third_is_gone(name: str, pp: int, micro_batches: int) -> None:
    split = ParallelSpec(pp=pp, schedule=name, micro_batches=micro_batches, early_gradients=True)  # type: ignore[arg-type]
    assert idle_share(split) == pytest.approx(2 / 3 * (pp - 1) / micro_batches)
    spans = simulate(schedule.plain(split), Costs.uniform(pp, 1, 1, 1))
    assert max(int(rows["end"].max()) for rows in spans.values()) == 3 * micro_batches + 2 * (pp - 1)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({}, "use pp=2 or more"),
        (
            {"pp": 2, "schedule": "zb-h1"},
            f"has parted it already; use schedule={', '.join(takes_early_gradients())}, or",
        ),
        (
            {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4},
            "needs the whole of it for an update; use schedule=naive",
        ),
    ],
)
def test_where_nothing_can_leave_early_it_is_refused(split: dict[str, Any], said: str) -> None:
    train = {"clip": "stage"} if split.get("schedule") == "1f1b-stash" else {}
    spec(train, **split)
    with pytest.raises(ValidationError) as caught:
        spec(train, early_gradients=True, **split)
    errors = field_errors(caught.value)
    (text,) = errors.values()
    assert set(errors) == {"parallel.early_gradients"} and said in text and "early_gradients=false" in text


def test_it_is_named() -> None:
    assert label(spec(pp=2, micro_batches=4, early_gradients=True)) == "PP-1F1B + early gradients"


@pytest.mark.parametrize(
    "split",
    [
        {"pp": 2, "schedule": "1f1b"},
        {"pp": 2, "schedule": "gpipe", "recompute": "full"},
        {"pp": 2, "schedule": "interleaved", "tp": 2},
        {"pp": 2, "schedule": "1f1b", "dp": 2, "zero": 2},
        {"pp": 3, "schedule": "interleaved", "micro_batches": 8},
        pytest.param({"pp": 4, "schedule": "interleaved", "micro_batches": 8}, marks=pytest.mark.full),
        pytest.param({"pp": 3, "schedule": "looped-bfs", "micro_batches": 8}, marks=pytest.mark.full),
        pytest.param({"pp": 4, "schedule": "1f1b", "micro_batches": 8}, marks=pytest.mark.full),
    ],
    ids=[
        "1f1b",
        "gpipe, recomputed",
        "interleaved x TP",
        "1f1b x ZeRO-2",
        "interleaved, 3 ranks",
        "interleaved, 4 ranks",
        "looped-bfs, 3 ranks",
        "1f1b, 4 ranks",
    ],
)
def test_losses_and_parameters_keep_their_bits(runner: LocalRunner, tmp_path: Path, split: dict[str, Any]) -> None:
    runs = []
    for early in (False, True):
        outcome = runner.run(spec(early_gradients=early, **{"micro_batches": 4, **split}), tmp_path / str(early))
        assert outcome.ok, outcome.failure()
        runs.append(outcome)
    plain, parted = runs
    assert parted.series("loss")["value"].tolist() == plain.series("loss")["value"].tolist()
    (before,), (after,) = (outcome.headers(0, "summary") for outcome in runs)
    assert after["fingerprint"]["parameters"] == before["fingerprint"]["parameters"]
    kinds = {Kind(int(kind)) for rows in parted.traced().values() for kind in rows["kind"]}
    assert {Kind.B, Kind.W} <= kinds
