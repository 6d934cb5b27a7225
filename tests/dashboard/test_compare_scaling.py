"""Of two compared runs, what more devices gained less than they should have."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import RankInfo, Run
from tests.dashboard import factory


def test_scaling_is_judged_of_quiet_runs_alone(reader: Client, alice: Any) -> None:
    for others, found in ((0.0, True), (0.5, False)):
        split = {"pp": 4, "schedule": "naive", "micro_batches": 4}
        a, b = factory.finished(alice, {}), factory.finished(alice, split, cpu_others=others)
        page = reader.get(f"/compare/?runs={a.pk},{b.pk}")
        assert (page.context["scaling"] is not None) is found


def test_scaling_is_told_of_the_same_steps_as_the_speedup(reader: Client, alice: Any) -> None:
    """Not of the few that were traced."""
    runs = [factory.finished(alice, split) for split in ({}, {"pp": 4, "schedule": "naive", "micro_batches": 4})]
    for run, median in zip(runs, (0.2, 0.1), strict=True):
        Run.objects.filter(pk=run.pk).update(summary=run.summary | {"timed": run.summary["timed"] | {"median": median}})
    context = reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").context
    assert context["rows"][1].entry.speed.ratio == pytest.approx(2.0)
    assert context["scaling"].title == "50 % of the earlier speed is left to each of 4 devices."
    assert context["scaling"].evidence.startswith("1 device took 200 ms a step, 4 take 100 ms;")


@pytest.mark.parametrize("short", [0, 1])
def test_scaling_is_not_judged_of_a_few_steps(short: int, reader: Client, alice: Any) -> None:
    """They tell no difference from noise, as the page says beside it."""
    runs = [factory.finished(alice, split) for split in ({}, {"pp": 4, "schedule": "naive", "micro_batches": 4})]
    run = runs[short]
    for steps, found in ((4, False), (5, True)):
        Run.objects.filter(pk=run.pk).update(summary=run.summary | {"timed": run.summary["timed"] | {"n": steps}})
        context = reader.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}").context
        assert (context["scaling"] is not None) is found


def test_scaling_is_not_judged_of_other_work_or_machines(reader: Client, alice: Any) -> None:
    """More devices of another kind, or in another precision, are slower or faster by themselves."""
    a = factory.finished(alice, {})
    b = factory.finished(alice, {"pp": 4, "schedule": "naive", "micro_batches": 4})
    address = f"/compare/?runs={a.pk},{b.pk}"
    assert reader.get(address).context["scaling"] is not None
    Run.objects.filter(pk=b.pk).update(spec={**b.spec, "train": {**b.spec["train"], "precision": "fp64"}})
    assert reader.get(address).context["scaling"] is None
    Run.objects.filter(pk=b.pk).update(spec=b.spec)
    RankInfo.objects.filter(attempt__run=b).update(hello={"device": "another chip"})
    RankInfo.objects.filter(attempt__run=a).update(hello={"device": "a chip"})
    assert reader.get(address).context["scaling"] is None
