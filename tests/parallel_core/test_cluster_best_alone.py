"""What is said to be the fastest is: over all micro-batches that divide, and over all widths of a pure strategy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.plan.cluster import changes, search
from parallel_core.plan.cluster.advice import advise
from parallel_core.plan.cluster.hardware import Cluster, clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plans import RECOMPUTE, Plan, Plans, changed
from parallel_core.plan.cluster.pure_strategies import pure_strategies
from parallel_core.rules import divisors

EIGHT = replace(clusters()["selene"], devices=8)


def _fastest(job: Job, cluster: Cluster, plans: list[Plan]) -> float:
    """Seconds of the fastest of the plans that can be trained."""
    return float(np.nanmin(search.evaluate(job, cluster, Plans.of(plans))[2]))


@pytest.mark.parametrize("batch", [1000, 120, 100, 24, 512])
def test_no_micro_batch_makes_the_best_plan_faster(batch: int) -> None:
    job = Job(presets()["gpt-1.3b"], batch)
    found = search.search(job, EIGHT)
    best = found.plans.row(found.best()[0])
    others = [changed(plan, micro_batch=size) for plan in (best, Plan(dp=8, zero=1)) for size in range(1, 33)]
    assert float(found.seconds[found.best()[0]]) <= _fastest(job, EIGHT, others)


def test_a_search_tries_each_micro_batch_that_divides_and_no_other() -> None:
    job = Job(presets()["gpt-1.3b"], 120)
    plans = search.grid(job, EIGHT, search.Space())
    assert set(plans.micro_batch[plans.dp == 8]) == {1, 3, 5, 15}
    assert set(plans.micro_batch[plans.dp == 1]) == {1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30}
    assert search.micro_batches(100, 8) == [1]
    lean = search.grid(job, EIGHT, search.lean(search.Space()))
    assert set(lean.micro_batch[lean.dp == 8]) == {1, 3, 5}


@pytest.mark.parametrize(("batch", "size"), [(1000, 5), (24, 3)])
def test_a_change_names_a_micro_batch_that_is_no_power_of_two(batch: int, size: int) -> None:
    job = Job(presets()["gpt-1.3b"], batch)
    change = changes.better(job, EIGHT, Plan(dp=8, zero=1), 1e9)
    assert change is not None and change.text == f"micro-batch {size}"


def test_a_pure_strategy_is_as_wide_as_is_fastest() -> None:
    """On a slow network 8 tensor ranks on one host are faster than 16 on two."""
    job, cluster = Job(presets()["gpt-1.3b"], 512), replace(clusters()["a100-1nic"], devices=32)
    found = {one.word: one.judged for one in pure_strategies(job, cluster, None, search.Space())}
    assert found["TP"].plan.tp == 8
    for word, axis, widths in (
        ("TP", "tp", divisors(job.model.heads)),
        ("DP", "dp", divisors(32)),
        ("PP", "pp", [12, 13, 24]),
    ):
        every = [
            changed(found[word].plan, **{axis: width}, micro_batch=size, recompute=kind)
            for width in widths
            for size in range(1, 33)
            for kind in RECOMPUTE
        ]
        assert found[word].seconds == pytest.approx(_fastest(job, cluster, every))


def test_no_pipeline_that_the_search_lists_is_faster_than_the_best_one_alone() -> None:
    job = Job(presets()["gpt-1.3b"], 512)
    alone = next(one.judged for one in pure_strategies(job, EIGHT, None, search.Space()) if one.word == "PP")
    listed = search.search(job, EIGHT)
    pipelines = (listed.plans.pp > 1) & (listed.plans.tp == 1) & (listed.plans.dp == 1)
    assert alone.seconds == pytest.approx(float(np.nanmin(listed.seconds[pipelines])))
    assert alone.plan.schedule != "1f1b"


def test_a_pure_strategy_has_any_width_that_divides_and_only_schedules_of_the_search() -> None:
    """Of 30 layers, two more divide over eight stages; a batch of 12 over six replicas."""
    job = Job(replace(presets()["gpt-1.3b"], layers=30), 12)
    found = {one.word: one.judged.plan for one in pure_strategies(job, EIGHT, None, search.Space())}
    assert (found["PP"].pp, found["DP"].dp) == (8, 6)
    plain = pure_strategies(job, EIGHT, None, search.Space(schedules=("1f1b",)))
    assert next(one.judged.plan.schedule for one in plain if one.word == "PP") == "1f1b" != found["PP"].schedule


def test_where_no_width_fits_the_one_with_least_memory_is_shown() -> None:
    job = Job(presets()["gpt-175b"], 1024)
    found = {one.word: one.judged for one in pure_strategies(job, EIGHT, None, search.Space())}
    assert not any(judged.fits for judged in found.values())
    assert found["ZeRO"].plan == Plan(dp=8, zero=3, recompute="full")
    assert found["TP"].plan == Plan(tp=8, sequence_parallel=True, recompute="full")


def test_a_pure_strategy_that_is_faster_than_the_best_combination_says_so() -> None:
    job = Job(presets()["gpt-1.3b"], 512)
    dp = next(one.judged for one in pure_strategies(job, EIGHT, None, search.Space()) if one.word == "DP")
    assert dp.seconds is not None
    for together, words in ((dp.seconds * 1.1, "0.91x the time of the best"), (dp.seconds, "As fast as any")):
        found = {one.word: one.sentence for one in pure_strategies(job, EIGHT, together, search.Space())}
        assert words in found["DP"]


def test_changes_of_a_plan_on_some_of_the_devices_are_said_to_be_on_as_many() -> None:
    """Eight replicas are 7 times as fast as one device."""
    job = Job(presets()["gpt-1.3b"], 64)
    few = advise(job, EIGHT, Plan(micro_batch=8)).sentence
    assert "No single change of the plan on 1 device is faster; " in few
    alone = advise(job, replace(EIGHT, devices=1, per_host=1), Plan(micro_batch=8)).sentence
    assert alone == few.replace(" on 1 device", "")
