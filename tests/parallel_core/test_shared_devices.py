"""Ranks that share a device take turns on it: where one waits another computes, and no replay knows that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parallel_core.analysis.diagnosis import diagnose, scaling, unjudged
from parallel_core.analysis.diagnosis.run_case import together
from parallel_core.local import LocalRunner
from parallel_core.run_findings import case_of
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import MODEL, costs, healthy, spec
from tests.parallel_core.test_replay import step

WHY = "ranks that take turns on a device cannot be replayed"


@pytest.mark.parametrize(
    ("numbers", "hosts", "most"),
    [
        ([0, 1, 0, 1], [], 2),
        ([0, 1, 0, 1], ["a", "a", "b", "b"], 1),
        ([0, 1, 0, 1], ["a", "b", "a", "b"], 2),
        ([0, 1, 0, None], [], 2),
        ([None, None], [], 1),
    ],
)
def test_only_ranks_on_one_device_of_one_host_share_it(numbers: list[int | None], hosts: list[str], most: int) -> None:
    assert together(dict(enumerate(numbers)), hosts) == most


def test_a_bubble_in_which_other_ranks_compute_is_not_told_to_be_filled() -> None:
    """Four stages of a GPT on two cores took 131 ms with 4 micro-batches; 16 of them were to save 26, and took 162."""
    made = spec(pp=4, micro_batches=4)
    alone = healthy(made)
    assert [found.rule for found in diagnose(alone)] == ["few_micro_batches"] and WHY not in unjudged(alone)
    shared = replace(alone, together=2)
    assert not diagnose(shared) and WHY in unjudged(shared)


def test_more_ranks_than_devices_are_told_to_scale_poorly_for_that() -> None:
    made, alone = spec(pp=4, micro_batches=4), spec()
    later = healthy(made, traced=[step(made, costs(made, message=4_000))] * 3, together=2)
    found = scaling.check(replace(later, earlier=healthy(alone)))
    assert found is not None
    assert found.change == "Give each rank a core or GPU of its own, or use fewer: up to 2 of them take turns on one."


@pytest.mark.parametrize(("devices", "most"), [([0, 0], 2), ([0], 1)])
def test_ranks_tell_which_device_they_are_on(
    runner: LocalRunner, tmp_path: Path, devices: list[int], most: int
) -> None:
    made = RunSpec.model_validate(
        {"model": MODEL, "parallel": {"dp": len(devices)}, "train": {"global_batch": 4, "steps": 4, "warmup_steps": 1}}
    )
    outcome = runner.run(made, tmp_path, devices=devices)
    assert outcome.ok and case_of(made, outcome).together == most
