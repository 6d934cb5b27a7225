"""The run page in every state, its fragments and its log."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.ledger import services as ledger
from dashboard.ledger.models import Profile, ProfileState
from dashboard.runs import states
from dashboard.runs.form.spec_table import groups
from dashboard.runs.models import Checkpoint, RankInfo, Run, SpanChunk, State
from dashboard.runs.page import verdict as page_verdict
from dashboard.runs.page.tabs import TABS
from dashboard.runs.page.tiles import WIDTH, line, tiles
from dashboard.runs.page.verdict import lateness, planned_bubble, verdict
from parallel_core.analysis.quantities import step_text
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain

PIPELINE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def html(client: Client, run: Run, query: str = "") -> str:
    answer = client.get(reverse("runs:page", args=[run.pk]) + query)
    assert answer.status_code == 200
    return str(answer.content.decode())


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_of_a_finished_run(reader: Client, alice: Any, tab: str) -> None:
    page = html(reader, factory.finished(alice, PIPELINE), f"?tab={tab}")
    assert f'id="tab" data-tab="{tab}"' in page
    assert page.count('aria-current="page"') >= 1


def test_the_title_of_the_page_names_the_tab_that_was_asked_for(reader: Client, alice: Any) -> None:
    """Tabs of one run, open side by side in a browser, were all called the same."""
    run = factory.finished(alice, PIPELINE)
    asked = {"": "", "?tab=timeline": "Timeline of ", "?tab=logs": "Logs of ", "?tab=no-such": ""}
    for query, said in asked.items():
        assert f"<title>{said}{run.name} · Trainyard</title>" in html(reader, run, query)


def test_the_tabs_keep_the_step_its_window_and_what_is_outlined(reader: Client, alice: Any) -> None:
    page = html(reader, factory.finished(alice, PIPELINE), "?step=10&from=1.5&to=3&lit=1:2:2.5&tab=ranks")
    links = re.findall(r'<a href="([^"#]+)#details"[^>]*data-keeps', page)
    assert [parse_qs(unescape(link).removeprefix("?")) for link in links] == [
        {"step": ["10"], "from": ["1.5"], "to": ["3"], "lit": ["1:2:2.5"], "tab": [tab]} for tab in TABS
    ]


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_of_a_queued_run(reader: Client, alice: Any, tab: str) -> None:
    assert html(reader, factory.queued(alice), f"?tab={tab}")


def test_finished_run_says_its_step_time_and_memory(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    said = verdict(run).sentence
    assert "40 timed steps" in said
    assert "MiB" in said
    assert said in plain(html(reader, run))


def test_the_head_says_what_is_trained(reader: Client, alice: Any) -> None:
    page = reader.get(f"/runs/{factory.queued(alice).pk}/").content.decode()
    assert "GPT 4 x 64, batch 16, fp32" in page[page.index("<h1>") : page.index('id="verdict"')]


def test_queued_run_says_what_it_waits_for_and_who_is_ahead(reader: Client, alice: Any) -> None:
    first, run = factory.queued(alice, name="first in line"), factory.queued(alice, name="second")
    found = verdict(run)
    assert found.sentence.startswith("Waits for")
    assert found.ahead == [first]
    assert "first in line" in html(reader, run)
    assert found.sentence in html(reader, run, "?tab=logs").replace("&#x27;", "'")
    later = [factory.queued(alice, name=f"later {i}") for i in range(5)][-1]
    assert (len(verdict(later).ahead), verdict(later).further) == (5, 1)
    assert "Ahead: 1 more, then " in html(reader, later)


def test_requeued_run_says_so(alice: Any) -> None:
    run = factory.queued(alice)
    Run.objects.filter(pk=run.pk).update(detail="Interrupted by an orderly stop of its worker; queued again.")
    run.refresh_from_db()
    assert verdict(run).sentence.endswith("queued again.")
    assert verdict(run).more.startswith("Waits for")


def test_a_run_behind_a_profile_says_what_it_waits_for_and_how_long(reader: Client, alice: Any) -> None:
    host, spec = factory.worker(), RunSpec.model_validate(factory.spec_of({}))
    ledger.ask_profile(worker=host, spec=spec, user=alice)
    run = factory.queued(alice)
    factory.start(run)
    Run.objects.filter(pk=run.pk).update(state=State.STARTING)
    run.refresh_from_db()
    found = verdict(run)
    assert found.sentence.startswith("Waits for yard-a, which times the layers of GPT 4 x 64")
    assert found.sentence.endswith("that takes one to two minutes.")
    for page in ("/partition/", "/partition/fleet/"):
        said = reader.get(page).content.decode()
        assert "one to two minutes" in said and "about a minute" not in said, "the same everywhere"
    assert found.more.startswith("The profile was asked for 0 s ago, and is stopped after 10 min")
    assert found.sentence in plain(html(reader, run))
    now = timezone.now()
    done = Profile.objects.create(worker=host, spec=spec.model_dump(mode="json"), key="k", state=ProfileState.DONE)
    Profile.objects.filter(pk=done.pk).update(asked_at=now - timedelta(seconds=77), done_at=now)
    assert verdict(run).sentence.endswith("that usually takes 1 min 17 s here.")


def test_a_run_in_front_of_a_profile_starts(alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    Run.objects.filter(pk=run.pk).update(state=State.STARTING)
    ledger.ask_profile(worker=factory.worker(), spec=RunSpec.model_validate(factory.spec_of({})), user=alice)
    run.refresh_from_db()
    assert verdict(run).sentence == "Starting on yard-a, device 0."


def test_running_run_counts_steps_and_names_the_bubble(alice: Any) -> None:
    run = factory.queued(alice, PIPELINE)
    factory.feed_steps(factory.start(run), 12)
    run.refresh_from_db()
    said = verdict(run).sentence
    assert said.startswith("12 of 43 steps, ")
    assert "left; " in said
    assert "(planned 20 %)" in said
    uneven = factory.queued(alice, {**PIPELINE, "cuts": [2]})
    factory.feed_steps(factory.start(uneven), 12)
    uneven.refresh_from_db()
    assert "(20 % with equal stages)" in verdict(uneven).sentence, "its own cut plans another one"
    alone = factory.queued(alice)
    factory.feed_steps(factory.start(alone), 12)
    alone.refresh_from_db()
    assert verdict(alone).sentence.endswith("% of the step is compute.")  # it has no peer to communicate with


def test_a_run_of_which_no_rank_moves_says_so_before_it_is_ended(alice: Any) -> None:
    """For a minute its page told the time left, as of a run that goes on."""
    run = factory.queued(alice, PIPELINE)
    factory.feed_steps(attempt := factory.start(run), 12)
    waits, works = {"step": 12, "op": "0RECV_GRAD0"}, {"step": 12, "op": "1F0"}

    def warning(*ages: float | None) -> str:
        told = [{**where, "age": age} for where, age in zip((waits, works), ages, strict=False)]
        attempt.progress = {str(rank): where for rank, where in enumerate(told)}
        attempt.save(update_fields=["progress"])
        return verdict(Run.objects.get(pk=run.pk)).warning

    assert warning(31.0, 32.0).startswith("No rank has moved for 31 s. Rank 1 is in forward 0 of stage 1.")
    assert not warning(31.0, 2.0) and not warning(31.0) and not warning(31.0, None)
    Run.objects.filter(pk=run.pk).update(step_time=7.0)
    assert not warning(31.0, 32.0), "steps of this run take as long"


@pytest.mark.parametrize(
    ("bubble", "said"),
    [(0.1, "; 10 % of the step is bubble."), (0.01, "; 2 % of the step is communication not hidden.")],
)
def test_ranks_without_a_pipeline_name_what_they_lose_most_by(
    alice: Any, monkeypatch: pytest.MonkeyPatch, bubble: float, said: str
) -> None:
    """As the title of the step below: a replica that waits for a slower one has a bubble, too."""
    run = factory.queued(alice, {"dp": 2})
    factory.feed_steps(factory.start(run), 12)
    run.refresh_from_db()
    monkeypatch.setattr(page_verdict, "shares", lambda run: {"compute": 0.8, "communication": 0.02, "bubble": bubble})
    assert verdict(run).sentence.endswith(said)


def test_late_gradients_are_called_stale() -> None:
    said = lateness({"0": {"mean": 0.997, "max": 1.0}, "1": {"mean": 0.0, "max": 0.0}})
    assert said.startswith("Mean staleness of gradients, in updates of the weights: 0.997 on stage 0 (at most 1), 0 on")
    assert lateness({}) == "", "a pipeline with a flush"


def test_planned_bubble_of_the_schedules() -> None:
    assert planned_bubble(RunSpec.model_validate(factory.spec_of(PIPELINE))) == pytest.approx(1 / 5)
    assert planned_bubble(RunSpec.model_validate(factory.spec_of({"pp": 2, "schedule": "naive"}))) == 0.5


def test_an_ended_run_without_a_traced_step_promises_none(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    assert "appears here by itself" in html(reader, run)
    factory.start(run)
    factory.end(run, State.FAILED, "Rank 0 failed.", "user_code")
    page = html(reader, run, "?tab=logs")
    assert "It appears here by itself" not in page and "No step was traced" in page
    assert "<h2>No log</h2>" in page


def test_a_run_that_was_stopped_early_had_no_step_to_trace_yet(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    factory.end(run, State.CANCELLED)
    assert "No step was traced: the run ended before its first traced one." in html(reader, run)


def test_its_owner_alone_is_led_to_rename_a_run(client: Client, alice: Any, bob: Any) -> None:
    run = factory.queued(alice)
    for user, times in ((alice, 1), (bob, 0)):
        client.force_login(user)
        assert html(client, run).count(reverse("runs:edit", args=[run.pk])) == times


def test_cancelled_before_start(reader: Client, alice: Any) -> None:
    """Nothing is said of steps, nor promised to be measured, where there were none."""
    run = states.cancel_queued(factory.queued(alice), actor=alice)
    assert verdict(run).sentence.startswith("Cancelled before it started")
    page = html(reader, run)
    assert "No step was traced" not in page
    assert "rank 0; not measured" in page and "measured on a step" not in page


def test_a_run_of_one_step_has_done_one(alice: Any) -> None:
    run = factory.queued(alice, train={"steps": 1, "warmup_steps": 0})
    factory.start(run)
    factory.end(run, State.SUCCEEDED)
    assert verdict(run).sentence == "1 step done; none was timed."


def test_a_cancelled_run_says_from_where_it_can_go_on(alice: Any) -> None:
    run = factory.queued(alice)
    attempt = factory.start(run)
    factory.end(run, State.CANCELLED)
    assert not verdict(run).more
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=38, bytes=1, seconds=0.1)
    assert verdict(run).more == "“Resume as…” goes on from its checkpoint after 38 steps."


def test_actions_follow_the_role(client: Client, alice: Any, bob: Any) -> None:
    run = factory.queued(alice)
    cancel = reverse("runs:cancel", args=[run.pk])
    client.force_login(bob)
    assert cancel not in html(client, run)
    client.force_login(alice)
    page = html(client, run)
    assert page.count(cancel) == 2  # the link that works without JavaScript, and the dialog
    assert 'action="' + cancel in page


def test_signed_out_readers_see_nothing(client: Client, alice: Any) -> None:
    run = factory.queued(alice)
    for name, args in (("page", []), ("fragment", ["head"]), ("data", ["points"])):
        assert client.get(reverse(f"runs:{name}", args=[run.pk, *args])).status_code == 302


def test_fragments(reader: Client, alice: Any) -> None:
    run = factory.finished(alice)
    for name in ("head", "tiles", "steps", "tab"):
        answer = reader.get(reverse("runs:fragment", args=[run.pk, name]))
        assert f'id="{name}"' in answer.content.decode()
    assert reader.get(reverse("runs:fragment", args=[run.pk, "other"])).status_code == 404
    assert reader.get(reverse("runs:data", args=[run.pk, "other"])).status_code == 404
    assert reader.get(reverse("runs:page", args=[999])).status_code == 404


def test_the_choice_of_steps_is_a_part_of_its_own(reader: Client, alice: Any) -> None:
    """As on the page with the same parameters, which its links and form keep."""
    run = factory.queued(alice)
    address, part = reverse("runs:page", args=[run.pk]), reverse("runs:fragment", args=[run.pk, "steps"])
    factory.feed_steps(factory.start(run), 30)
    assert 'name="step"' not in reader.get(part).content.decode(), "one step is no choice"
    for chunk in list(SpanChunk.objects.filter(step=10)):
        chunk.pk, chunk.step = None, 20
        chunk.save()
    for query in ("", "?tab=memory&step=20", "?tab=memory&step=7"):
        told = reader.get(part + query).content.decode()
        assert told.strip() in reader.get(address + query).content.decode() and 'name="step"' in told
    assert ">traced step 20<" in reader.get(f"{part}?step=20").content.decode().lower()


def test_ranks_of_a_finished_run_have_no_empty_columns_and_name_their_device(reader: Client, alice: Any) -> None:
    live = factory.queued(alice, PIPELINE)
    factory.start(live)
    shown = html(reader, live, "?tab=ranks").split('id="tab"')[1]
    assert "Still for" in shown and ">In<" in shown
    assert ">device 0<" in shown and ">device 1<" in shown, "no rank has said yet what it is"
    done = factory.finished(alice, PIPELINE)
    RankInfo.objects.filter(attempt__run=done).update(hello={"device": "cpu", "host": "yard-a"})
    shown = html(reader, done, "?tab=ranks").split('id="tab"')[1]
    assert "Still for" not in shown and "Last seen in" not in shown
    assert ">cpu on yard-a, device 0<" in shown and ">cpu on yard-a, device 1<" in shown


def test_the_verdict_is_read_out_when_the_state_changes_and_not_with_each_step(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    assert 'aria-live="polite" aria-atomic="true"' in html(reader, run)
    factory.feed_steps(factory.start(run), 2)
    Run.objects.filter(pk=run.pk).update(state=State.RUNNING)
    assert 'aria-live="off" aria-atomic="true"' in html(reader, run)


def test_an_age_goes_on_counting_on_an_open_page(reader: Client, alice: Any) -> None:
    run = factory.finished(alice)
    page = html(reader, run)
    assert run.ended_at
    assert f'ended <time datetime="{run.ended_at.isoformat()}" data-age="ago">' in page
    assert re.search(r'<html lang="en" data-now="\d+\.\d+">', page) and "js/ages" in page


def test_the_memory_tile_outlines_the_prediction(reader: Client, alice: Any) -> None:
    before, after = tiles(factory.queued(alice))[-1], tiles(factory.finished(alice))[-1]
    assert "predicted" in before.note and before.outline == WIDTH
    assert "predicted" in after.note and after.outline is not None
    assert before.solid is None and after.solid is not None
    assert 0 < after.solid <= WIDTH and 0 < after.outline <= WIDTH
    page = reader.get(reverse("runs:page", args=[Run.objects.latest("pk").pk])).content.decode()
    assert f'd="M0 10.5H{after.outline:.1f}V21.5H0"' in page


def test_colours_of_the_memory_below_the_timeline_are_named(reader: Client, alice: Any) -> None:
    """Its activations are nearly as yellow as recomputation, which alone the page named."""
    legend = "Colours of the memory categories"
    assert legend in html(reader, factory.finished(alice))
    unmetered = factory.finished(alice)
    unmetered.spec["trace"]["memory"] = False
    unmetered.save()
    assert legend not in html(reader, unmetered)


def test_tiles_of_a_run_without_points_keep_their_place(alice: Any) -> None:
    found = tiles(factory.queued(alice))
    assert [tile.key for tile in found] == ["loss", "step_time", "tokens_per_s", "memory"]
    assert {tile.value for tile in found} == {"–"}


def test_sparkline_stays_in_its_box_and_skips_what_is_not_finite() -> None:
    import numpy as np

    points = line(np.array([1.0, np.nan, 3.0, np.inf, 2.0]))
    assert len(points.split()) == 3
    assert all(0 <= float(y) <= 32 for _, y in (pair.split(",") for pair in points.split()))
    assert line(np.array([2.0, 2.0]))
    assert line(np.array([1.0])) == ""


def test_the_spec_is_said_in_the_words_of_the_form_and_only_what_counts(alice: Any) -> None:
    spec = RunSpec.model_validate({"parallel": {"pp": 2}}).model_dump(mode="json")
    found = {group.title: {line.leaf: (line.words, line.value) for line in group.lines} for group in groups(spec)}
    assert list(found) == ["Model", "Parallelism", "Training", "Tracing"]
    assert found["Parallelism"]["parallel.pp"] == ("Pipeline stages", "2")
    assert found["Model"]["model.bias"] == ("Biases in linear layers", "yes")
    assert found["Model"]["model.kv_heads"][1] == found["Tracing"]["trace.profile_steps"][1] == "–"
    assert "model.image" not in found["Model"]  # used only by models of images
    assert "train.loss_scale" not in found["Training"]  # used only with fp16
    del spec["train"]["optimizer"], spec["train"]["momentum"]
    (old,) = (group for group in groups(spec) if group.title == "Training")
    assert {"train.beta1", "train.beta2", "train.eps"} <= {line.leaf for line in old.lines}, "it was AdamW's"


def test_one_timed_step_has_no_range(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {})
    Run.objects.filter(pk=run.pk).update(summary=run.summary | {"timed": {**run.summary["timed"], "n": 1}})
    client.force_login(alice)
    page = client.get(f"/runs/{run.pk}/").content.decode()
    assert "a step (the only one that was timed)" in page and "1 timed steps" not in page


def test_a_step_is_written_as_all_counts_are(reader: Client, alice: Any) -> None:
    run = factory.queued(alice, train={"steps": 3000})
    factory.start(run)
    Run.objects.filter(pk=run.pk).update(step=2545)
    text = plain(reader.get(f"/runs/{run.pk}/").content.decode())
    assert "2\N{NO-BREAK SPACE}546 of 3\N{NO-BREAK SPACE}000 steps" in text
    assert step_text(2546) == "step 2\N{NO-BREAK SPACE}546"
