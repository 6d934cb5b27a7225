"""What a scaling study's speedups are over: a single device if one has a result, else the fewest devices that have."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from django.test import Client

from dashboard.charts import scaling as charts
from dashboard.charts.scaling import Point
from dashboard.runs.models import Run, State
from dashboard.studies import scaling
from dashboard.studies.models import Study
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.selectors import overview
from tests.dashboard import factory

REASON = "Rank 0 ran out of memory in forward."


@pytest.fixture
def study(alice: Any) -> Study:
    """A Single that failed for want of memory, as it does where a model needs several devices."""
    made = Study.objects.create(name="Scaling", owner=alice, kind="scaling", base=factory.BASE)
    single = factory.queued(alice, study=made, name="Single")
    factory.start(single)
    factory.end(single, State.FAILED, REASON, "out_of_memory")
    made.baseline = single
    made.save()
    return made


def add(study: Study, owner: Any, split: dict[str, Any], batch: int = 16, seconds: float = 0.0) -> Run:
    """A run that succeeded, with median steps of so many seconds if given."""
    run = factory.finished(owner, split, train={"global_batch": batch}, study=study, position=study.runs.count())
    if seconds:
        run.summary["timed"] |= {"median": seconds}
        run.save(update_fields=["summary"])
    return run


def view_of(study: Study) -> Overview:
    return overview(study.runs.all(), study.baseline)


def test_without_a_single_the_fewest_devices_with_a_result_are_the_base(
    client: Client, alice: Any, study: Study
) -> None:
    add(study, alice, {"dp": 2}, seconds=0.1)
    add(study, alice, {"tp": 2}, seconds=0.2)
    add(study, alice, {"dp": 4}, seconds=0.0625)
    add(study, alice, {"dp": 4}, batch=64, seconds=0.2)
    found = scaling.points(view_of(study))
    assert {(p.name, p.devices): p.speedup for p in found} == pytest.approx(
        {("DP, strong", 2): 1.0, ("TP, strong", 2): 0.5, ("DP, strong", 4): 1.6, ("DP, weak", 4): 2.0}
    )
    assert {p.devices: p.ideal for p in found} == {2: 1.0, 4: 2.0}
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/")
    chart, verdict = page.context["charts"]["scaling"], page.context["verdict"]
    assert chart.title == "100 % efficiency on 4 devices: DP, weak scales best, 2.00x of DP, strong on 2."
    assert chart.title == verdict[0] and "over 2 devices (DP, strong) of the same model" in chart.subtitle
    assert chart.figure["layout"]["yaxis"]["title"]["text"] == "times 2 devices (DP, strong), samples/s"
    assert (chart.figure["data"][0]["x"], chart.figure["data"][0]["y"]) == ([2, 4], [1.0, 2.0])
    assert f"Single failed and is left out: {REASON}" in verdict, "warnings are not lost"


def test_the_stalls_of_runs_without_a_single_are_drawn(alice: Any, study: Study) -> None:
    add(study, alice, {"dp": 2})
    made = scaling.of_overview(study, view_of(study))
    assert [row[:2] for row in made["stalls"].rows] == [["DP, strong", "2"]]
    assert "stalls on communication: DP, strong on 2 devices" in made["stalls"].title
    assert made["scaling"].title == "0 runs on more than 2 devices, the fewest with a result, have one."
    said = scaling.verdict(study, view_of(study))
    assert said[:2] == [made["scaling"].title, "1 of 2 runs has finished."]
    assert f"Single failed and is left out: {REASON}" in said


def test_nothing_with_a_result_says_so_in_any_state(alice: Any, study: Study) -> None:
    made = scaling.of_overview(study, view_of(study))
    assert made["scaling"].title == "0 runs on more than one device have a result." and made["scaling"].empty
    assert scaling.verdict(study, view_of(study))[1] == "The only run has no result."


def test_repeats_count_by_their_median_the_base_too(alice: Any, study: Study) -> None:
    singles, pairs = (0.2, 0.19, 0.23, 0.21), (0.1, 0.16)
    for seconds in singles:
        add(study, alice, {}, seconds=seconds)
    for seconds in pairs:
        add(study, alice, {"dp": 2}, seconds=seconds)
    add(study, alice, {"micro_batches": 4}, seconds=0.01)
    found = {point.name: point for point in scaling.points(view_of(study))}
    assert set(found) == {"Single", "DP, strong"} and found["Single"].speedup == 1.0
    one, two = (median(1 / seconds for seconds in times) for times in (singles, pairs))
    assert found["DP, strong"].speedup == pytest.approx(two / one)


@pytest.mark.full
def test_splits_that_differ_are_no_repeats_of_each_other(alice: Any, study: Study) -> None:
    """Each has its point: degrees are named where two would have one label, and so is what else tells them apart."""
    for split, seconds in (
        ({}, 1.0),
        ({"recompute": "full"}, 1.25),
        ({"dp": 2}, 0.5),
        ({"dp": 4}, 0.25),
        ({"dp": 2, "tp": 2}, 0.8),
        ({"dp": 4, "recompute": "full"}, 0.5),
        ({"dp": 2, "pp": 2}, 0.625),
        ({"dp": 8}, 0.2),
        ({"dp": 4, "tp": 2}, 0.4),
        ({"dp": 2, "tp": 4}, 0.5),
        ({"pp": 4, "micro_batches": 4}, 0.4),
        ({"pp": 4, "micro_batches": 8}, 0.3125),
        ({"pp": 2, "cuts": [3]}, 0.8),
        ({"pp": 2, "cuts": [4]}, 1.0),
    ):
        add(study, alice, split, seconds=seconds)
    found = scaling.points(view_of(study))
    by_cuts = [run.pk for run in study.runs.filter(label="PP-1F1B").order_by("pk")]
    assert {(p.label, p.devices): p.speedup for p in found} == pytest.approx(
        {
            ("Single", 1): 1,
            ("Single + AR", 1): 0.8,
            ("DP", 2): 2,
            ("DP", 4): 4,
            ("DP", 8): 5,
            ("DP x TP", 4): 1.25,
            ("DP + AR", 4): 2,
            ("DP x PP-1F1B", 4): 1.6,
            ("DP 4 x TP 2", 8): 2.5,
            ("DP 2 x TP 4", 8): 2,
            ("PP-1F1B 4, m = 4", 4): 2.5,
            ("PP-1F1B 4, m = 8", 4): 3.2,
            **{(f"PP-1F1B, m = 1 #{pk}", 2): speed for pk, speed in zip(by_cuts, (1.25, 1), strict=True)},
        }
    )
    lines = {line["name"]: line["x"] for line in charts.speedup(found, "s").figure["data"][1:]}
    assert lines["DP, strong"] == [1, 2, 4, 8] and lines["Single + AR"] == [1]


def test_another_precision_is_another_split(alice: Any, study: Study) -> None:
    add(study, alice, {}, seconds=1.0)
    for precision, seconds in (("fp32", 0.5), ("bf16", 0.25)):
        run = add(study, alice, {"dp": 2}, seconds=seconds)
        run.spec["train"]["precision"] = precision
        run.save(update_fields=["spec"])
    found = {point.name: point.speedup for point in scaling.points(view_of(study))}
    assert found == pytest.approx({"Single, fp32": 1.0, "DP, fp32, strong": 2.0, "DP, bf16, strong": 4.0})


@pytest.mark.parametrize("batches", [(32, 64), (32, 64, 16), (16, 16), (16, 16, 32, 64)])
def test_the_batch_of_one_device_is_known_without_it(alice: Any, study: Study, batches: tuple[int, ...]) -> None:
    """Weak alone, weak and strong, strong alone: on 2, 4, 2 and 4 devices."""
    study.runs.all().delete()
    for batch, n in zip(batches, (2, 4, 2, 4), strict=False):
        add(study, alice, {"dp": n}, batch=batch)
    found = scaling.points(view_of(study))
    told = {(point.devices, point.way) for point in found}
    ways = ["strong" if batch == 16 else "weak" for batch in batches]
    assert told == set(zip((2, 4, 2, 4), ways, strict=False))


def test_cores_that_devices_share_limit_the_ideal_over_several_devices() -> None:
    two = Point("", "DP", "dp", "strong", 2, 1.0, 0.1, fewest=2, base="DP, strong")
    eight = two._replace(devices=8, speedup=1.5)
    assert (eight.ideal, eight._replace(cores=4).ideal, eight._replace(cores=2).ideal) == (4.0, 2.0, 1.0)
    shared = [point._replace(cores=4) for point in (two, eight)]
    assert charts.sentences(shared) == [
        "75 % of what 4 cores allow, shared by 8 devices: DP, strong scales best, 1.50x of DP, strong on 2."
    ]
    alone = charts.speedup(shared, "s")
    assert alone.figure["data"][0]["y"][-1] == 2.0
    assert alone.subtitle.endswith("; 8 devices share 4 cores, so linear ends at 2")
    mixed = charts.speedup([*shared, Point("MLP", "Single", "single", "", 1, 1.0, 0.0)], "s")
    assert "over the fewest devices with a result of the same model" in mixed.subtitle
    assert mixed.subtitle.endswith("; 8 devices share 4 cores")
    assert [line["name"] for line in mixed.figure["data"][:2]] == ["linear", "linear over 2 devices"]
