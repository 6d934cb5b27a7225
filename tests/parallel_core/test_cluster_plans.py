"""Plans as columns of numbers: names are stored as codes, and values that depend on a name are looked up by that
name.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.plan.cluster import changes, plans, search, step, verdict
from parallel_core.plan.cluster.hardware import clusters
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.plans import RECOMPUTE, SCHEDULES, Plan, Plans
from parallel_core.plan.cluster.search import Space
from parallel_core.schedule.traits import TRAITS


def test_of_each_plan_its_own_words_value_is_chosen() -> None:
    plans = Plans.of([Plan(schedule=name) for name in reversed(SCHEDULES)])
    each = np.arange(float(len(plans)))
    values = {name: each + 100 * len(name) for name in sorted(SCHEDULES)}
    lengths = [len(name) for name in reversed(SCHEDULES)]
    assert plans.chosen("schedule", values).tolist() == [i + 100 * length for i, length in enumerate(lengths)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_nothing_is_told_of_is_no_other_ones(name: str) -> None:
    plans = Plans.of([Plan(schedule="gpipe")])
    with pytest.raises(KeyError, match=name):
        plans.chosen("schedule", {other: plans.pp for other in SCHEDULES if other != name})


def test_a_schedule_without_a_bubble_of_its_own_gets_no_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plans._CODES, "schedule", (*SCHEDULES, "naive"))
    job, cluster = Job(presets()["gpt-22b"], 64), clusters()["selene"]
    with pytest.raises(KeyError, match="naive"):
        step.of(job, cluster, Plans.of([Plan(pp=4)]))


def test_plans_of_each_recomputation_are_told_apart() -> None:
    plans = Plans.of([Plan(recompute=name) for name in RECOMPUTE])
    values = {name: np.full(3, float(len(name))) for name in RECOMPUTE}
    assert plans.chosen("recompute", values).tolist() == [len(name) for name in RECOMPUTE]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_read_as_it_is_written(name: str) -> None:
    for chunks in {TRAITS[name].chunks, TRAITS[name].most or 3}:
        plan = Plan(pp=4, schedule=name, chunks=chunks)
        assert read(plan.label()) == plan
    assert read(f"PP 4, {name}") == Plan(pp=4, schedule=name, chunks=TRAITS[name].chunks)


def test_a_search_and_a_change_give_each_schedule_chunks_that_it_can_have() -> None:
    space = Space(schedules=SCHEDULES, most_chunks=3)
    made = search.schedules(Job(presets()["gpt-200b"], 1024), space, 2)
    assert {name for name, _ in made} == set(SCHEDULES)
    assert {name for name, _ in changes._SCHEDULES} == set(Space().schedules)
    for name, chunks in (*made, *changes._SCHEDULES):
        assert TRAITS[name].least <= chunks <= (TRAITS[name].most or 4)


@pytest.mark.parametrize(("state", "fewer"), [(8, None), (10, None), (14, None), (16, 8), (18, 16), (20, 18)])
def test_fewer_bytes_a_parameter_are_those_of_the_same_optimizer(state: int, fewer: int | None) -> None:
    steps = changes._steps(Job(presets()["gpt-200b"], 1024), clusters()["h100"], Plan(dp=8, state=state))
    assert [fields["state"] for _, fields in steps if "state" in fields] == ([fewer] if fewer else [])


def test_widths_that_divide_the_plans_devices_are_tried_where_they_do_not_divide_the_clusters() -> None:
    """768 of 1 000 devices: 12 and 24 stages divide the first number alone."""
    job, cluster = Job(presets()["gpt-175b"], 768), replace(clusters()["h100"], devices=1000)
    slow = Plan(32, 8, 3, 2, schedule="zb-v", zero=1)
    seconds = verdict.judge(job, cluster, slow).seconds
    faster = changes.better(job, cluster, slow, seconds) if seconds else None
    assert faster and faster.text == "PP 12" and faster.plan == replace(slow, dp=8, pp=12)
    refused = Plan(32, 4, 6, 2, schedule="zb-v")
    possible = changes.cheapest(job, cluster, refused)
    assert possible and possible.text == "PP 24" and possible.plan == replace(refused, dp=8, pp=24)
