"""Why more devices gained less than they should have: the account that grew for the same samples a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallel_core import faults
from parallel_core.analysis.diagnosis import diagnose, scaling
from parallel_core.analysis.diagnosis.case import Case
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import MODEL, costs, slowed, spec, with_children
from tests.parallel_core.test_replay import step

MS = 1_000_000


def case(dp: int, batch: int, compute: int, reduction: int, earlier: Case | None = None) -> Case:
    """One traced step: `compute` ms, `reduction` ms of ALLREDUCE, 4 ms of optimizer."""
    made = RunSpec.model_validate({"model": MODEL, "parallel": {"dp": dp}, "train": {"global_batch": batch}})
    forward = compute * MS // 4
    ns = {Kind.F: forward, Kind.BW: 3 * forward, Kind.ALLREDUCE: reduction * MS, Kind.OPT_STEP: 4 * MS}
    return Case(made, [step(made, Costs({(0, kind): own for kind, own in ns.items()}))], earlier=earlier)


@pytest.mark.parametrize(
    ("batch", "compute", "reduction", "words", "lost"),
    [
        (16, 80, 8, "compute grew most, by 32 ms", 92 - 50),  # each has half the samples: 48 ms were to be expected
        (64, 192, 90, "collectives not hidden grew most, by 90 ms", 286 - 200),  # and here twice as many: 192 ms
    ],
)
def test_compute_that_follows_the_batch_has_not_grown(
    batch: int, compute: int, reduction: int, words: str, lost: int
) -> None:
    later = case(2, batch, compute, reduction, earlier=case(1, 16, 96, 0))
    (finding,) = [one for one in diagnose(later) if one.rule == "scaling"]
    assert finding.evidence.endswith(f"; for the same samples a device, {words}.")
    assert finding.effect_ns == lost * MS
    wanted = "a core or GPU of its own" if words.startswith("compute") else "the sum costs the same whatever the batch"
    assert wanted in finding.change, "what to do follows from what grew"


@pytest.mark.parametrize(
    ("schedule", "m", "change"),
    [
        ("naive", 1, "Set parallel.schedule to 1f1b and parallel.micro_batches to 4."),
        ("gpipe", 2, "train.global_batch together, or use a schedule that waits less."),
    ],
)
def test_a_bubble_that_grew_is_filled_with_micro_batches_where_the_schedule_can(
    schedule: str, m: int, change: str
) -> None:
    split = {"pp": 2, "schedule": schedule, "micro_batches": m}
    made = RunSpec.model_validate({"model": MODEL, "parallel": split})
    ns = {(stage, kind): 40 * MS // m for stage in (0, 1) for kind in (Kind.F, Kind.BW)}
    later = Case(made, [step(made, Costs(ns))], earlier=case(1, made.train.global_batch, 160, 0))
    found = scaling.check(later)
    assert found and "bubble grew most" in found.evidence and found.change.endswith(change)


@pytest.mark.parametrize(
    ("split", "slow", "words"),
    [
        ({"pp": 2, "micro_batches": 8, "cuts": (2,)}, 0, "1.89x the mean work: stage 1 holds up the pipeline. Leave"),
        ({"pp": 2, "micro_batches": 32}, 2, "2.00x as long as the others: rank 1 is a straggler. Look at"),
        ({"dp": 2}, 2, "2.00x as long as the others: rank 1 is a straggler. Look at"),
    ],
)
def test_what_another_rule_finds_behind_the_account_that_grew_is_what_to_do(
    split: dict[str, Any], slow: float, words: str
) -> None:
    """More micro-batches leave the heaviest stage as heavy, and a larger batch a slow rank as slow."""
    made, alone = spec(**split), spec()
    traced = slowed(made, 1, slow) if slow else [step(made, costs(made))] * 3
    later = Case(made, traced, others=0.02, earlier=Case(alone, [step(alone, costs(alone))]))
    found = scaling.check(later)
    assert found and found.change.startswith(words), found


def test_a_bubble_behind_a_slow_link_is_not_to_be_filled_with_more_messages() -> None:
    made, alone = spec(pp=2, micro_batches=8), spec()
    slow = [step(made, costs(made, message=4_000))] * 3
    found = scaling.check(Case(made, slow, earlier=Case(alone, [step(alone, costs(alone))])))
    assert found and "bubble grew most" in found.evidence and "is waiting for messages. Give these two" in found.change


@pytest.mark.parametrize(
    ("split", "change"),
    [
        ({"dp": 2, "zero": 2, "micro_batches": 4}, "Lower parallel.micro_batches, or set parallel.zero to 1"),
        ({"dp": 2}, "Raise train.global_batch: the sum costs the same whatever the batch"),
    ],
)
def test_collectives_of_replicas_that_grew_are_told_by_their_rule(split: dict[str, Any], change: str) -> None:
    made, alone, plain = spec(**split), spec(), spec(dp=2, micro_batches=split.get("micro_batches", 1))
    sums = [step(plain, costs(plain, reduction=60_000))] * 3
    found = scaling.check(Case(made, sums, earlier=Case(alone, [step(alone, costs(alone))])))
    assert found and "collectives not hidden grew most" in found.evidence and change in found.change, found


@pytest.mark.parametrize(
    ("share", "columns", "change"),
    [
        (0.30, False, "Give each device more work (a larger train.global_batch), or use a split that sends less."),
        (0.45, False, "45 % of the step is tensor-parallel communication. Keep tensor groups on the fastest link"),
        (0.45, True, "45 % of the step is tensor-parallel communication. Set parallel.tensor_split to pairs"),
    ],
)
def test_a_tensor_group_that_is_too_fine_is_told_as_that(share: float, columns: bool, change: str) -> None:
    made, alone = spec(tp=2, tensor_split="columns" if columns else "pairs"), spec()
    earlier = Case(alone, [step(alone, costs(alone, factor={0: 0.6}))])
    found = scaling.check(Case(made, with_children(made, Kind.TP_COLLECTIVE, share), earlier=earlier))
    assert found and "collectives not hidden grew most" in found.evidence and found.change.startswith(change), found


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"train": {"precision": "fp64"}}, False),
        ({"train": {"device": "cuda"}}, False),
        ({"train": {"deterministic": True}}, False),
        ({"train": {"clip_norm": None}}, False),
        ({"parallel": {"recompute": "full"}}, False),
        ({"parallel": {"recompute": "full", "recompute_layers": [0]}}, False),
        ({"inject": [faults.parse("straggler:rank=1,factor=2")]}, False),
        ({"train": {"seed": 3, "lr": 1e-2, "steps": 99, "clip": "stage"}}, True),
        ({"parallel": {"zero": 1, "micro_batches": 2}}, True),
    ],
)
def test_only_runs_that_do_the_same_work_for_a_sample_are_compared(changed: dict[str, Any], found: bool) -> None:
    """Half the speed in fp64, or with everything computed twice, is not lost by the split."""
    later = case(2, 16, 80, 8, earlier=case(1, 16, 96, 0))
    told = later.spec.model_dump(mode="json")
    more = {name: {**told[name], **value} if isinstance(value, dict) else value for name, value in changed.items()}
    other = replace(later, spec=RunSpec.model_validate({**told, **more}))
    assert (scaling.check(other) is not None) is found


def test_the_same_layers_recomputed_are_the_same_work_however_they_are_listed() -> None:
    def again(made: Case, layers: list[int] | None) -> Case:
        split = made.spec.parallel.model_copy(update={"recompute": "full", "recompute_layers": layers})
        return replace(made, spec=made.spec.model_copy(update={"parallel": split}))

    every = list(range(MODEL["layers"]))
    earlier = again(case(1, 16, 96, 0), None)
    assert scaling.check(again(case(2, 16, 80, 8, earlier=earlier), every)) is not None
