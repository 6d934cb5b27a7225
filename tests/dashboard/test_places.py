"""Runs on other hosts or devices are not compared as if only their splits differed; an ideal is that of equal work."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import RankInfo, Run
from dashboard.runs.places import Place, places_of
from dashboard.studies.models import Study
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.plain import plain


def put(run: Run, host: str, device: str) -> Run:
    """Says that the run was on this host, on devices of this name."""
    attempt = run.attempts.get()
    attempt.devices = [{**attempt.devices[0], "worker": host}]
    attempt.save(update_fields=("devices",))
    for info in RankInfo.objects.filter(attempt=attempt):
        info.hello = {**info.hello, "device": device}
        info.save(update_fields=("hello",))
    return run


def differing(reader: Client, *runs: Run) -> tuple[dict[str, Any], str]:
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}")
    lines = {line.words: list(line.values) for line in page.context["differing"]}
    return {"lines": lines, "verdict": page.context["verdict"]}, html.unescape(page.content.decode())


def test_equal_specs_on_two_machines_differ_by_more_than_noise(reader: Client, alice: Any) -> None:
    a = put(factory.finished(alice, name="A"), "yard-a", "NVIDIA A100")
    b = put(factory.finished(alice, name="B"), "yard-b", "NVIDIA H100")
    found, page = differing(reader, a, b)
    assert found["lines"] == {"Ran on": ["yard-a", "yard-b"], "Device": ["NVIDIA A100", "NVIDIA H100"]}
    assert "What remains is noise" not in page
    warning = "B ran on NVIDIA H100 of yard-b, A on NVIDIA A100 of yard-a: their ratio compares the machines, too."
    assert found["verdict"][0] == warning
    assert overview([a, b], a).on_times == overview([a, b], a).verdict[1], "a chart's title is no warning"


def test_equal_specs_on_one_machine_differ_by_noise_which_is_said_only_if_it_is_known(
    reader: Client, alice: Any
) -> None:
    a, b = (put(factory.finished(alice), "yard-a", "x86_64") for _ in range(2))
    assert differing(reader, a, b)[0]["lines"] == {}
    assert "all specs are equal, and so are hosts and devices. What remains is noise." in differing(reader, a, b)[1]
    RankInfo.objects.filter(attempt__run=b).update(hello={})
    page = differing(reader, a, b)[1]
    assert "Nothing: all specs are equal." in page and "What remains is noise" not in page


def test_a_run_over_the_baselines_host_and_more_is_not_elsewhere() -> None:
    one, two = Place(("a",), ("x86_64",)), Place(("a", "b"), ("x86_64",))
    assert not one.elsewhere(two) and not two.elsewhere(one) and not one.elsewhere(Place())
    assert one.elsewhere(Place(("b",), ("x86_64",))) and one.elsewhere(Place(("a", "b"), ("x86_64", "arm")))


def test_a_study_counts_the_runs_on_other_machines(alice: Any) -> None:
    runs = [factory.finished(alice, split) for split in ({}, {"dp": 2}, {"tp": 2}, {"pp": 2})]
    for run, host in zip(runs, ("yard-a", "yard-a", "yard-b", "yard-b"), strict=True):
        put(run, host, "x86_64")
    view = overview(runs, runs[0])
    said = "2 of 3 runs were on other machines than the baseline, Single: ratios over it compare the machines, too."
    assert view.verdict[0] == said and view.warned_first == 1
    put(runs[2], "yard-a", "x86_64")
    view = overview(runs, runs[0])
    moved = [said for said in view.verdict if "their ratio compares the machines, too." in said]
    assert len(moved) == 1 and moved[0] != view.verdict[0] and view.warned_first == 0
    assert all(row.entry.ideal for row in view.rows), "hosts with equal devices have one ideal"


def test_the_list_of_studies_warns_of_other_machines_as_the_page_does(reader: Client, alice: Any) -> None:
    study = Study.objects.create(name="Two hosts", owner=alice)
    for position, (split, device) in enumerate((({}, "NVIDIA A100"), ({"dp": 2}, "NVIDIA H100"))):
        put(factory.finished(alice, split, study=study, position=position), f"yard-{position}", device)
    first, second = reader.get(f"/studies/{study.pk}/").context["verdict"][:2]
    assert first.endswith("their ratio compares the machines, too.") and "of ideal" not in second
    assert html.escape(f"{first} {second}") in plain(reader.get("/studies/").content.decode())


def test_the_pace_of_two_hosts_is_not_called_that_of_one(alice: Any) -> None:
    a, b = (factory.finished(alice, {"dp": 2}, reference=seconds) for seconds in (0.002, 0.003))
    assert any(said.startswith("The host's own pace differed") for said in overview([a, b], a).verdict)
    put(b, "yard-b", "x86_64")
    assert any(said.startswith("The devices' pace differed") for said in overview([a, b], a).verdict)


@pytest.mark.parametrize("change", [{"global_batch": 32}, {"precision": "bf16"}])
def test_other_work_has_no_ideal_over_the_baseline(alice: Any, change: dict[str, Any]) -> None:
    a, b, c = factory.finished(alice), factory.finished(alice, train=change), factory.finished(alice, {"dp": 2})
    view = overview([a, b, c], a)
    ideals = {row.run.pk: row.entry.ideal for row in view.rows}
    assert ideals == {a.pk: 1.0, b.pk: None, c.pk: 2.0}
    assert all(row.entry.result.ideal is None for row in view.rows if row.run.pk == b.pk and row.entry.result)
    Run.objects.filter(pk=b.pk).update(
        summary={**b.summary, "timed": {**dict.fromkeys(b.summary["timed"], 1e-3), "n": 40}}
    )
    b.refresh_from_db()
    alone = overview([a, b], a)
    assert "is fastest: " in alone.verdict[0] and "of ideal" not in alone.verdict[0]


def test_other_devices_have_no_ideal_over_the_baseline(alice: Any) -> None:
    a = put(factory.finished(alice), "yard-a", "NVIDIA A100")
    b = put(factory.finished(alice, {"dp": 2}), "yard-a", "NVIDIA H100")
    assert {row.run.pk: row.entry.ideal for row in overview([a, b], a).rows} == {a.pk: 1.0, b.pk: None}


def test_the_place_is_that_of_the_newest_attempt(alice: Any) -> None:
    run = put(factory.finished(alice, {"dp": 2}), "yard-a", "x86_64")
    again = factory.start(run)
    again.devices = [{**again.devices[0], "worker": name, "devices": [0]} for name in ("yard-c", "yard-b")]
    again.save(update_fields=("devices",))
    assert places_of([run]) == {run.pk: Place(("yard-b", "yard-c"), ())}
