"""The tabs that explain a step's time: accounts, plan against measurement, what if, and the step as a file."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from dashboard.runs.models import Attempt, MemoryRecord, Run, SpanChunk, State
from dashboard.runs.page import charts, timeline
from dashboard.runs.page.operators import folded
from dashboard.runs.tracing import planned, traces
from dashboard.runs.tracing.traces import Trace
from parallel_core.analysis.diagnosis import RULES
from parallel_core.analysis.quantities import seconds_text
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.streamed_body import received

PIPELINE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def tab(client: Client, run: Run, query: str) -> str:
    answer = client.get(f"/runs/{run.pk}/?{query}")
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", plain(answer.content.decode()))


def traced(run: Run) -> Trace:
    found = traces.trace(run, None)
    assert found is not None
    return found


def test_accounts_add_up_and_name_what_the_speedup_lost(client: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({}, PIPELINE, {"dp": 2}), recompute=False)
    run = study.runs.get(position=1)
    client.force_login(alice)
    said = tab(client, run, "tab=accounts")
    assert "Where the step went, rank by rank" in said
    assert re.search(r"the largest part of the rest, [0-9.]+, goes to bubble\.", said)
    assert "% of the critical path is on rank" in said
    for account in traced(run).accounts.values():
        assert account.warmup + account.steady + account.drain == account.parts.bubble
    assert "One device has nothing to lose" in tab(client, study.runs.get(position=0), "tab=accounts")


def test_a_step_of_a_pipeline_that_never_flushes_has_no_critical_path(client: Client, alice: Any) -> None:
    """The chain goes on in the step before, so what is found of it here is not as long as the step."""
    run = factory.finished(alice, PIPELINE | {"schedule": "1f1b-stash"}, train={"clip": "stage"})
    client.force_login(alice)
    said, drawn = tab(client, run, "tab=accounts"), tab(client, run, "tab=timeline")
    never = "its pipeline never flushes."
    assert f"None: some of this step's work was done in the step before: {never}" in html.unescape(said)
    assert "of the critical path is on rank" not in said and "Where the step went, rank by rank" in said
    assert f"{never} So there is no plan to hold it against, and no critical path is drawn." in drawn


def test_without_a_one_device_run_it_says_what_is_missing(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    said = "kind of device, with the same model, batch and precision: "
    assert f"{said}this run is in no study." in tab(client, run, "tab=accounts")
    alone = factory.study(alice, splits=(PIPELINE,), recompute=False).runs.get()
    assert f"{said}its study has none that succeeded and was traced." in tab(client, alone, "tab=accounts")


def test_the_timeline_has_the_plan_and_the_critical_path(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    said = tab(client, run, "tab=timeline")
    assert "Planned over measured, and the critical path" in said
    spans = traced(run)
    assert f"{spans.kept} of {spans.total} spans of step 10" in said


def test_the_latest_operation_that_is_named_is_one_that_is_drawn_with_its_plan(alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    for chunk in SpanChunk.objects.filter(attempt__run=run):
        rows = np.frombuffer(bytes(chunk.data), SPAN).copy()
        rows["end"][rows["kind"] == Kind.OPT_STEP] += int(rows["end"].max())
        SpanChunk.objects.filter(pk=chunk.pk).update(data=rows.tobytes())
    found = timeline.context(run, None)
    said = found["overlay"].title
    assert "optimizer" not in said and ("is the most that an operation is late" in said or "No operation ends" in said)
    below = [(operations, latest) for _, operations, _, latest in found["overlay"].rows]
    assert below == [("8", "0"), ("8", "0")], "the numbers below the chart are of the same operations"


def test_title_and_list_of_late_operations_are_of_what_is_outlined(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may have recomputation as a separate operation; in the chart and the list it is part of its backward."""
    run = factory.finished(alice, {**PIPELINE, "recompute": "full"})
    whole = planned.lateness

    def with_late_recomputation(*args: Any) -> Any:
        joined = whole(*args)
        joined["end"][np.flatnonzero(joined["kind"] == Kind.BW)[0]] += 10**8
        again = joined[joined["kind"] == Kind.BW].copy()
        again["kind"], again["end"] = Kind.R, again["end"] + 10**9
        return np.concatenate([joined, again])

    monkeypatch.setattr(planned, "lateness", with_late_recomputation)
    found = timeline.context(run, None)
    told = [found["overlay"].title, *(row["operation"] for row in found["late"])]
    assert len(told) > 1 and all("backward" in words for words in told[:2])
    assert not any("recompute" in words for words in told)


def test_what_is_not_there_is_said(client: Client, alice: Any) -> None:
    run = factory.queued(alice, PIPELINE)
    client.force_login(alice)
    assert "No traced step has arrived yet." in tab(client, run, "tab=whatif")
    assert "No traced step yet" in tab(client, run, "tab=accounts")
    assert "No traced step yet" in tab(client, run, "tab=timeline")
    Run.objects.filter(pk=run.pk).update(state=State.FAILED, ended_at=timezone.now())
    for name in ("whatif", "accounts", "timeline"):
        said = tab(client, run, f"tab={name}")
        assert "This run ended before a traced step was complete." in said and "has arrived yet" not in said, name
        assert "No traced step yet" not in said, name


def test_the_step_as_files(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE, name="=HYPERLINK(1)")
    client.force_login(alice)
    chrome = client.get(f"/runs/{run.pk}/trace/10/chrome")
    events = json.loads(received(chrome))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert chrome.headers["Content-Disposition"] == f'attachment; filename="run-{run.pk}-step-10.trace.json"'
    text = received(client.get(f"/runs/{run.pk}/trace/10/csv")).decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 1 + traced(run).kept
    assert not any(cell[:1] in "=+@" for row in rows for cell in row)
    assert client.get(f"/runs/{run.pk}/trace/11/csv").status_code == 404
    assert client.get(f"/runs/{run.pk}/trace/10/exe").status_code == 404


def test_a_run_with_nothing_wrong_says_so(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    MemoryRecord.objects.update(peak_total=8 << 20)  # this model needs less than the factory's memory records say
    client.force_login(alice)
    one_step = f"Nothing wrong found; checked {len(RULES) - 1} of {len(RULES)} rules: one traced step is not enough"
    assert one_step in tab(client, run, "")
    begun = factory.queued(alice, {"dp": 2})
    factory.feed_steps(factory.start(begun), 4)
    MemoryRecord.objects.update(peak_total=8 << 20)
    untraced = sum(not rule.steps and not rule.replays for rule in RULES.values())
    assert f"checked {untraced} of {len(RULES)} rules: no step has been traced" in tab(client, begun, "")
    waiting = factory.queued(alice, {"dp": 2})
    assert "Nothing wrong found" not in tab(client, waiting, "")


def test_findings_lead_to_their_place(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "schedule": "naive", "micro_batches": 4, "recompute": "full"})
    client.force_login(alice)
    said = tab(client, run, "")
    assert 'data-rule="few_micro_batches"' in said
    assert "Schedule 1F1B would save" in said
    address = re.search(r'data-rule="few_micro_batches".*?href="\?([^"#]+)#details"', said)
    assert address is not None
    assert "One change at a time" in tab(client, run, address[1].replace("&amp;", "&"))
    assert 'data-rule="few_micro_batches"' in client.get(f"/runs/{run.pk}/part/findings").content.decode()


def test_a_disturbed_run_is_said_to_be(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2}, cpu_others=0.7)
    client.force_login(alice)
    assert "70 % of the time of one device went to other processes." in tab(client, run, "")


def test_two_ranks_operation_by_operation(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    said = tab(client, run, "tab=operators&a=0&b=1")
    assert " only on rank 1." in said
    assert 'data-status="only_b"' in said
    replicas = factory.finished(alice, {"dp": 2})
    assert "the same parameters, different samples" in tab(client, replicas, "tab=operators")
    assert "rank 0 of run" in tab(client, run, f"tab=operators&other={replicas.pk}").lower()
    assert "against rank" in tab(client, run, "tab=operators&a=77&b=<b>&other=999999")
    waiting = factory.queued(alice, {"dp": 2})
    assert "Nothing to compare yet" in tab(client, waiting, "tab=operators")


@pytest.mark.full
def test_operators_of_a_step_that_not_every_rank_recorded(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 4})
    client.force_login(alice)

    def shown(query: str = "") -> Any:
        return client.get(f"/runs/{run.pk}/?tab=operators{query}").context

    assert [shown("&a=1")[name] for name in ("rank_a", "rank_b", "operators_of")] == [1, 0, ""]
    SpanChunk.objects.filter(attempt__run=run, rank=1).delete()
    for query, ranks in (("", [0, 2]), ("&a=0&b=1", [0, 2]), ("&a=1", [0, 2]), ("&b=0", [2, 0]), ("&a=2", [2, 0])):
        found = shown(query)
        assert [found["rank_a"], found["rank_b"]] == ranks, query
    assert "Of step 10, the spans of 3 of 4 ranks are here: 0, 2, 3." in tab(client, run, "tab=operators")
    SpanChunk.objects.filter(attempt__run=run, rank__gt=0).delete()
    assert shown()["operators"] is None
    assert "the spans of 1 of 4 ranks are here: 0. Choose a step" in tab(client, run, "tab=operators")
    one = factory.finished(alice)
    assert "The run has one rank." in tab(client, one, "tab=operators")
    assert "rank 0 of run" in tab(client, one, f"tab=operators&other={run.pk}").lower()


def test_operations_of_one_name_that_follow_each_other_are_one_row() -> None:
    norm, other = ("same", "same", "statistics 0", "statistics 0"), ("only_a", "only on rank 0", "forward 0", "")
    assert folded([norm, norm, norm, other, other, norm]) == [
        ("same", "same", "statistics 0 x 3", "statistics 0 x 3"),
        ("only_a", "only on rank 0", "forward 0 x 2", ""),
        norm,
    ]


def test_a_step_of_many_spans_is_a_heatmap_until_it_is_zoomed(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    for chunk in SpanChunk.objects.filter(attempt__run=run):
        rows = np.frombuffer(bytes(chunk.data), SPAN)
        own = rows[rows["kind"] != Kind.STEP]
        length, copies = int(rows["end"].max()), 1500 // len(own) + 1
        table = np.tile(own, copies)
        shift = np.repeat(np.arange(copies), len(own)) * length
        table["start"] += shift
        table["end"] += shift
        chunk.data, chunk.count, chunk.total = table.tobytes(), len(table), len(table)
        chunk.save()
    client.force_login(alice)
    src = f"/runs/{run.pk}/data/gantt.json?step=10"
    whole = client.get(src).json()
    assert [trace["type"] for trace in whole["figure"]["data"]] == ["heatmap"]
    assert whole["figure"]["layout"]["meta"]["window"] == src
    near = client.get(f"{src}&from=1&to=200").json()
    assert {trace["type"] for trace in near["figure"]["data"]} == {"bar"}
    assert near["figure"]["layout"]["xaxis"]["range"] == whole["figure"]["layout"]["xaxis"]["range"]
    lit = client.get(f"{src}&from=1&to=200&lit=1:10.5:12").json()
    frame = lit["figure"]["data"][-1]
    assert (frame["name"], frame["base"], frame["x"], frame["y"]) == ("lit", [10.5], [1.5], [1])
    assert "outlined: what the finding is about" in lit["subtitle"]
    assert client.get(f"{src}&lit=1:10.5:12").json()["figure"]["layout"]["meta"]["window"] == f"{src}&lit=1:10.5:12.0"
    for broken in ("9:1:2", "1:5:4", "x:1:2", "1:1", "1:nan:2", "-1:1:2"):
        assert client.get(f"{src}&from=1&to=200&lit={broken}").json()["figure"]["data"][-1]["name"] != "lit"
    for query in ("from=nan&to=5", "from=5&to=1", "from=x&to=inf"):
        assert client.get(f"{src}&{query}").json()["figure"]["data"][0]["type"] == "heatmap"


def test_compare_says_where_scaling_went(client: Client, alice: Any) -> None:
    one, four = factory.finished(alice), factory.finished(alice, {"pp": 4, "schedule": "naive", "micro_batches": 4})
    client.force_login(alice)
    said = client.get(f"/compare/?runs={one.pk},{four.pk}").content.decode()
    assert 'data-rule="scaling"' in said
    assert "bubble grew most" in said
    assert 'data-rule="scaling"' not in client.get(f"/compare/?runs={four.pk},{one.pk}").content.decode()


def test_the_hover_says_who_was_waited_for(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    figure = client.get(f"/runs/{run.pk}/data/gantt.json").json()["figure"]
    hovers = [text for trace in figure["data"] for text in trace.get("customdata", ())]
    assert any("receive activation 0" in text and "waited" in text and "for rank 0" in text for text in hovers)


def test_the_single_device_that_losses_are_held_against_is_the_one_that_stands(alice: Any) -> None:
    """Not the first by position: that one was cancelled, disturbed, broken on purpose, or on another kind of device."""
    study = factory.study(alice, splits=({}, PIPELINE), recompute=False)
    run, single = study.runs.get(position=1), study.runs.get(position=0)
    found = traces.baseline(run)
    assert found is not None and found[0].pk == single.pk
    again = factory.finished(alice, {}, study=study, position=0)
    Run.objects.filter(pk=again.pk).update(repeats=single)
    for change in (
        {"state": State.CANCELLED},
        {"summary": {**single.summary, "cpu_others": 0.5}},
        {"repeats": None, "injected": ["A rank stood still."]},
        {"summary": {**single.summary, "cpu_others": None, "others_missing": True}},
    ):
        saved = Run.objects.filter(pk=single.pk).values(*change).get()
        Run.objects.filter(pk=single.pk).update(**change)
        if "injected" in change:
            Run.objects.filter(pk=again.pk).update(repeats=None)
        found = traces.baseline(run)
        assert found is not None and found[0].pk == again.pk, change
        Run.objects.filter(pk=single.pk).update(**saved)
    (attempt,) = single.attempts.all()
    Attempt.objects.filter(pk=attempt.pk).update(devices=[{**attempt.devices[0], "worker": "yard-b"}])
    found = traces.baseline(run)
    assert found is not None and found[0].pk == again.pk, "on another host"
    Run.objects.filter(pk__in=(single.pk, again.pk)).update(
        spec={**single.spec, "train": {**single.spec["train"], "device": "cuda"}}
    )
    assert traces.baseline(run) is None


def test_a_step_far_off_the_median_does_not_stand_for_the_run(alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    chart = charts.timeline(run)
    assert chart and "median" not in chart.title
    timed = run.summary["timed"]
    run.summary["timed"] = {**timed, "median": timed["median"] / 2}
    odd = charts.timeline(run)
    assert odd and odd.title == f"{chart.title[:-1]}; the median step takes {seconds_text(timed['median'] / 2)}."


def test_the_chart_of_a_step_names_the_rank_that_is_a_straggler(alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    factory.feed_steps(attempt, 8)
    for step, rank in ((20, 0), (20, 1), (22, 0), (22, 1)):
        forward = (3 if rank else 1) * 20 * factory.MS
        parts = ((Kind.STEP, 3, 0, 10 * forward), (Kind.F, 0, 0, forward), (Kind.BW, 0, forward, 3 * forward))
        rows = [(kind, lane, 0, 0, rank, 0, begin, end, 0) for kind, lane, begin, end in parts]
        head = {"kind": "spans", "rank": rank, "t": 0.0, "step": step, "count": len(rows), "total": len(rows)}
        factory.feed(attempt, rank, encode(head, np.array(rows, SPAN).tobytes()))
    chart = charts.timeline(run)
    assert chart and chart.title.endswith("; rank 1 is a straggler.")
