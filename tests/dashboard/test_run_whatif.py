"""The what-if tab of a run: its answers, its ideas, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.runs.models import RankInfo, Run, SpanChunk
from dashboard.runs.tracing import whatif_replay, whatif_words
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.replay import GATHERS_ASIDE, TAKE_TURNS, Change, Replay
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain, unmarked
from tests.dashboard.test_run_inspect import PIPELINE, tab, traced

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker


def test_what_if_without_a_change_says_what_was_measured_not_what_was_replayed(alice: Any) -> None:
    made = Replay(RunSpec.model_validate(factory.spec_of(PIPELINE)), {}, 395e6)
    assert whatif_words.sentence(Change(), made, 398e6).startswith(
        "398 ms is the step as it was measured, from its first instant on any rank to its last. Change"
    )


def test_what_if_answers_and_says_how_sure_it_is(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    said = tab(client, run, "tab=whatif")
    assert "is the step as it was measured" in said
    assert "(0 % off)" in said
    assert "outlined = predicted; one row a pipeline rank" in said
    assert "with 4 micro-batches no number of devices could pass 4x" in said.lower()
    naive = factory.finished(alice, {"pp": 2, "schedule": "naive", "micro_batches": 4})
    assert "with the naive schedule no number of stages could pass 1x" in tab(client, naive, "tab=whatif").lower()
    faster = tab(client, run, "tab=whatif&device=2&links=free")
    assert "faster: free communication, a device 2 times as fast." in faster
    schedule = tab(client, run, "tab=whatif&schedule=zb-h1")
    assert "schedule ZB-H1" in schedule
    marked = client.get(f"/runs/{run.pk}/?tab=whatif&schedule=zb-h1").content.decode()
    assert 'schedule <span class="whole">ZB-H1' in marked
    assert "faster" in schedule
    early = tab(client, run, "tab=whatif&early_gradients=on")
    assert "faster: early gradients." in early and "Run it" in early
    run = factory.finished(alice, {**PIPELINE, "early_gradients": True})
    early = tab(client, run, "tab=whatif")
    assert 'name="early_gradients"' not in early, "the run already uses them"
    assert "could pass" not in early


def test_another_schedule_that_cannot_keep_the_cuts_says_so(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {**PIPELINE, "cuts": [2]})
    client.force_login(alice)
    said = tab(client, run, "tab=whatif&schedule=zb-v")
    assert "schedule ZB-V with stages cut by FLOPs." in said and "Schedule ZB-V with stages cut by FLOPs" in said
    assert "Schedule 1F1B with" not in said and "schedule 1F1B." in tab(client, run, "tab=whatif&schedule=1f1b")
    even = factory.finished(alice, PIPELINE)
    assert "cut by FLOPs" not in tab(client, even, "tab=whatif&schedule=zb-v")


def test_a_speedup_is_said_of_the_typical_step_unless_another_is_asked_for(client: Client, alice: Any) -> None:
    run = factory.study(alice, splits=({}, {"dp": 2}), recompute=False).runs.get(position=1)
    typical = traced(run).step
    newest = typical + 10
    for chunk in SpanChunk.objects.filter(attempt__run=run, step=typical):
        chunk.pk, chunk.step = None, newest
        chunk.save()
    assert traced(run).step == newest
    client.force_login(alice)
    said = tab(client, run, "tab=whatif")
    assert "with free communication." in said and f"Step {typical} is replayed" in said
    assert f"measured, step {typical} against the traced step of" in tab(client, run, "tab=accounts")
    assert "with free communication." in tab(client, run, f"tab=whatif&step={newest}")
    assert f"measured, step {newest} against the traced step of" in tab(client, run, f"tab=accounts&step={newest}")


@pytest.mark.parametrize(("late", "said"), [(0.0, False), (102e6, False), (180e6, True), (60e6, True)])
def test_where_messages_decide_a_prediction_both_are_said(late: float, said: bool) -> None:
    words = whatif_words.if_messages_stay(late, 100e6)
    assert words == (f" If messages take as long as before whatever their size: {late / 1e6:.0f} ms." if said else "")


def test_micro_batches_are_also_replayed_with_messages_as_long_as_before(alice: Any) -> None:
    trace = traced(factory.finished(alice, PIPELINE))
    assert whatif_replay.answer(trace, {"micro_batches": "8"}).late > 0
    assert not whatif_replay.answer(trace, {"schedule": "1f1b"}).late


def test_a_slider_asks_for_the_tab_alone_and_gets_what_the_page_says(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    page, query = f"/runs/{run.pk}/", "?tab=whatif&schedule=1f1b"
    whole = client.get(page + query).content.decode()
    asked = re.search(r'id="whatif-form"[^>]* action="([^"]*)#details"[^>]* data-whatif="([^"]*)"', whole)
    assert asked and asked[1] == page, "without scripts the form leads to the page"
    part = client.get(asked[2] + query).content.decode()
    assert part.strip() in whole and 'id="whatif-result"' in part and "Run it" in part
    assert 'data-chart="gantt"' not in part and len(part) < len(whole) / 2


def test_ideas_are_sorted_and_lead_to_themselves(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {**PIPELINE, "recompute": "full"})
    found = whatif_replay.ideas(traced(run))
    assert found[0]["words"] == "A device twice as fast"
    assert any(idea["words"] == "No recomputation" and idea["gain"] > "1.1" for idea in found)
    client.force_login(alice)
    for idea in found:
        assert "or take a line of the table" not in tab(client, run, idea["address"])


def test_a_change_is_tried_on_the_devices_of_its_run_and_named_after_it(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    Run.objects.filter(pk=run.pk).update(name="Slow one", run_on="yard-a:0,1")
    client.force_login(alice)
    address = client.get(f"/runs/{run.pk}/?tab=whatif&schedule=zb-h1").context["run_address"]
    answer = client.get(address)
    form = answer.context["form"]
    assert (form["name"].value(), form["run_on"].value()) == ("Slow one (what if)", "yard-a:0,1")
    assert form["parallel__schedule"].value() == "zb-h1"
    said = unmarked(plain(answer.content.decode()))
    assert f"The spec of run {run.pk} with what you asked in its What if, on the same devices." in said
    gone = client.get(address.replace(f"whatif={run.pk}", "whatif=999"))
    assert gone.status_code == 200 and gone.context["form"]["name"].value() == "", "of a run deleted meanwhile"


def test_tabs_use_the_cut_that_was_trained(client: Client, alice: Any) -> None:
    fault = {"kind": "unbalanced_cut", "stage": 0, "units": 2}
    run, same = factory.finished(alice, PIPELINE, inject=[fault]), factory.finished(alice, {**PIPELINE, "cuts": [7]})
    mine, theirs = traced(run), traced(same)
    assert mine.trained == theirs.spec and mine.about.spec == run.spec
    client.force_login(alice)
    sentences = [client.get(f"/runs/{one.pk}/?tab=operators").context["operators_sentence"] for one in (run, same)]
    assert sentences[0] == sentences[1] and "embed to block.2.mlp" in sentences[0]
    pictures = [client.get(f"/runs/{one.pk}/?tab=layout").context["layout"] for one in (run, same)]
    assert pictures[0].sentence == pictures[1].sentence
    found = client.get(f"/runs/{run.pk}/?tab=whatif&micro_batches=8").context
    assert found["sentence"] and not found["run_address"], "a run without the fault would not settle the prediction"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("micro_batches=5", "do not divide"),
        ("schedule=dualpipe-v&micro_batches=1", "at least 4 micro-batches"),
        ("device=0", "as fast must be a number from 0.1 to 100; got 0."),
        ("links=<b>", "; got &lt;b&gt;."),
    ],
)
def test_a_change_that_cannot_be_says_why(client: Client, alice: Any, query: str, words: str) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    said = tab(client, run, f"tab=whatif&{query}")
    assert words in said
    assert "<b>" not in said


@pytest.mark.parametrize(
    ("kinds", "said"), [([Kind.UNSHARD_FLIGHT], True), ([Kind.UNSHARD_FLIGHT, Kind.UNSHARD], False)]
)
def test_gathers_on_a_stream_of_their_own_are_said_to_count_as_work(
    client: Client, alice: Any, kinds: list[Kind], said: bool
) -> None:
    run = factory.finished(alice, {"dp": 2, "zero": 3})
    gathers = np.zeros(len(kinds), SPAN)
    gathers["kind"], gathers["micro_batch"] = kinds, -1
    for chunk in SpanChunk.objects.filter(attempt__run=run):
        assert chunk.count * SPAN.itemsize == len(bytes(chunk.data))
        chunk.data, chunk.count = bytes(chunk.data) + gathers.tobytes(), chunk.count + len(kinds)
        chunk.save()
    client.force_login(alice)
    assert (GATHERS_ASIDE in tab(client, run, "tab=whatif")) == said


def test_ranks_that_took_turns_on_a_device_are_said_to_get_one_each(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    client.force_login(alice)
    for number, said in ((0, True), (1, False)):
        for info in RankInfo.objects.filter(attempt__run=run):
            info.hello["number"] = number * info.rank
            info.save()
        assert (TAKE_TURNS in tab(client, run, "tab=whatif")) == said
        ranged = "were predicted" in tab(client, run, "tab=whatif&micro_batches=8")
        assert ranged != said, "how far off others were says nothing of a prediction that is too fast"


def test_a_step_that_was_cut_is_not_replayed(client: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    chunk = SpanChunk.objects.filter(attempt__run=run, rank=1).get()
    size = len(bytes(chunk.data)) // chunk.count
    chunk.data, chunk.count = bytes(chunk.data)[: 5 * size], 5
    chunk.save()
    client.force_login(alice)
    assert "not whole: rank 1 kept" in tab(client, run, "tab=whatif")
    assert "not whole" in tab(client, run, "tab=timeline").lower()
    assert f"{traced(run).kept} of {traced(run).total} spans were kept" in tab(client, run, "tab=accounts")
