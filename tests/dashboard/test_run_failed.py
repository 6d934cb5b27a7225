"""The page of a run that failed: its cause, the last words of its ranks, and what to do next."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.fleet.models import Worker
from dashboard.runs import linking, states
from dashboard.runs.models import Attempt, Checkpoint, LogChunk, Run, State
from dashboard.runs.page.fix import fix
from dashboard.runs.page.tabs import TABS
from dashboard.runs.page.verdict import verdict
from parallel_core.observe.progress import NO_STEPS
from tests.dashboard import factory
from tests.dashboard.link_runs import started
from tests.dashboard.plain import plain
from tests.dashboard.test_precision_page import add_series
from tests.dashboard.test_run_page import PIPELINE, html

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker
EVIL = "<script>alert('x')</script>"
NAN = float("nan")
GENERATION = {"prompt": [1], "new": 8, "samples": 1, "temperature": 0.0, "seed": 1, "cached": True}


def failed(owner: Any, cause: str = "out_of_memory", detail: str = "Rank 1 ran out of memory.") -> Run:
    run = factory.queued(owner, PIPELINE)
    attempt = factory.start(run)
    factory.feed_steps(attempt, 12)
    text = "".join(f"line {i}\n" for i in range(30)).encode()
    LogChunk.objects.create(attempt=attempt, rank=1, start=0, end=len(text), data=text)
    Attempt.objects.filter(pk=attempt.pk).update(report={"rank": 1, "traceback": f"Boom {EVIL}", "exits": {"1": 1}})
    factory.end(run, State.FAILED, detail, cause)
    return run


def test_failed_run_shows_cause_last_lines_and_fix(reader: Client, alice: Any) -> None:
    run = failed(alice)
    page = plain(html(reader, run))
    assert "Rank 1 ran out of memory." in page
    assert "line 29" in page
    assert "line 20" in page
    assert "line 19" not in page
    assert html(reader, run).count('<pre class="log end"') == 2, "lines and traceback begin at their end"
    assert re.search(r"Clone it and .+ is then predicted to need [\d.]+ MiB", page)
    assert EVIL not in page
    assert "Boom &lt;script&gt;" in page


def test_a_loss_that_stayed_nan_is_resumed_from_the_sound_checkpoint(reader: Client, alice: Any) -> None:
    run = failed(alice, "not_finite", "The loss is not finite since step 9 (train.stop_on_nan).")
    Checkpoint.objects.create(
        run=run, attempt=Attempt.objects.get(run=run), worker="yard-a", step=8, bytes=1, seconds=0.1
    )
    page = plain(html(reader, run))
    assert "loss not finite" in page and "since step 9 (“End it when the loss stays NaN" in page
    assert "Resume it from step 8 at a lower learning rate, or one that warms up (“Steps of rate warm-up”)." in page
    Attempt.objects.filter(run=run).update(progress={"1": {"step": 8, "op": "0F1", "age": 1.0}})
    assert verdict(run).more == "", "the rank stopped between two steps, and in no operation"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ([5.0, 4.6, 4.2, 3.9, 3.6, 3.4, 3.2, 3.1, 30.0, 400.0, 9e9, NAN, NAN], "Resume it from step 8 and lower “"),
        ([5.0, 4.6, 4.2, 3.9, 3.6, 9.0, 30.0, 90.0, 300.0, 800.0, 9e9, NAN, NAN], "Resume it from step 4 and lower “"),
        ([5.0, 9.0, 30.0, 60.0, 90.0, 200.0, 300.0, 800.0, 9e3, 9e5, NAN, NAN, NAN], "Clone it and lower “"),
        ([NAN] * 13, "Clone it and lower “"),
    ],
)
def test_what_was_saved_after_the_loss_had_risen_is_not_resumed(alice: Any, loss: list[float], said: str) -> None:
    """Its weights had diverged already: a lower rate does not bring them back."""
    run = factory.queued(alice)
    attempt = factory.start(run)
    factory.feed_losses(attempt, loss)
    for step in range(4, 12, 4):
        Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=step, bytes=1, seconds=0.1)
    factory.end(run, State.FAILED, "The loss is not finite since step 11 (train.stop_on_nan).", "not_finite")
    assert fix(run).startswith(said)


def test_a_loss_that_fp16_broke_is_not_mended_by_a_lower_rate_nor_from_its_checkpoint(alice: Any) -> None:
    run = factory.queued(alice, train={"precision": "fp16"})
    attempt = factory.start(run)
    factory.feed_losses(attempt, [3.0] * 8 + [NAN] * 5)
    add_series(run, "skipped_steps", [float(step) for step in range(13)])
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=4, bytes=1, seconds=0.1)
    factory.end(run, State.FAILED, "The loss is not finite since step 8 (train.stop_on_nan).", "not_finite")
    assert fix(run) == "Clone it and train in bf16, whose range is that of fp32; its checkpoints are of fp16."


def test_a_run_that_left_at_its_time_limit_says_so_and_can_be_resumed(client: Client, alice: Any) -> None:
    run = factory.queued(alice, PIPELINE)
    attempt = factory.start(run)
    factory.feed_steps(attempt, 12)
    said = "Ended after 12 of 43 steps: its limit of 5 minutes (train.max_minutes)."
    states.finish(attempt, "succeeded", "time_limit", said)
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=12, bytes=1, seconds=0.1)
    run.refresh_from_db()
    assert (run.state, run.retries_left) == (State.SUCCEEDED, 0) and run.events.filter(text=said).exists()
    client.force_login(alice)
    page = html(client, run)
    in_words = said.replace("train.max_minutes", "“Time limit”")
    assert in_words in plain(page)
    assert 'id="resume"' in page and "time limit" in page
    for listed in (html(client, run, "?tab=events"), client.get(reverse("runs:list")).content.decode()):
        assert in_words in plain(listed) and "train.max_minutes" not in listed


def test_a_killed_run_goes_on_from_its_checkpoint(reader: Client, alice: Any) -> None:
    """The sentence of the cause holds a newer place than the last heartbeat, so the latter is left out."""
    run = failed(alice, "killed_by_signal", "Rank 1 was killed by signal 9 (SIGKILL) at step 30 in forward 2.")
    attempt = Attempt.objects.get(run=run)
    Attempt.objects.filter(run=run).update(progress={"1": {"step": 27, "op": "0F1", "age": 1.0}})
    found = verdict(run)
    assert (found.more, found.fix[:21]) == ("", "Clone it with a retry")
    ranks = html(reader, run, "?tab=ranks").split('id="tab"')[1]
    assert "Last seen at step" in ranks and "forward 1 of stage 0" in ranks and "0F1" not in ranks
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=20, bytes=1, seconds=0.1)
    assert verdict(run).fix.startswith("Resume it from step 20 with a retry: the signal came from outside")


@pytest.mark.parametrize("place", [" at step 30 in forward 2", " while it measured links", ""])
def test_the_fix_of_a_crash_does_not_say_that_the_signal_came_from_outside(alice: Any, place: str) -> None:
    run = failed(alice, "killed_by_signal", f"Rank 1 was killed by signal 11 (SIGSEGV){place}.")
    said = "with another layout or device: its own process crashed; the end of its log has its stacks."
    assert verdict(run).fix == f"Clone it {said}"


def test_a_rank_that_ended_well_is_in_no_operation_and_behind_the_last_step(reader: Client, alice: Any) -> None:
    """Whatever place the last heartbeat of a short run reported."""
    run = factory.finished(alice, {"pp": 2})
    (attempt,) = run.attempts.all()
    attempt.progress = {rank: {"step": -1, "op": "connecting", "age": 0.1} for rank in "01"}
    attempt.report = {**attempt.report, "exits": {"0": 0, "1": 1}}
    attempt.save()
    shown = html(reader, run, "?tab=ranks").split('id="tab"')[1]
    assert shown.count("connecting") == 1 and "Last seen in" in shown
    assert run.step == 42 and shown.count('<td class="num">42</td>') == 1
    attempt.progress["1"]["op"] = "starting"
    attempt.save()
    assert ">starting<" in html(reader, run, "?tab=ranks")
    attempt.ranks.update(phase="timed")
    assert ">starting<" not in html(reader, run, "?tab=ranks").split('id="tab"')[1], "it had told of a phase since"


def test_a_rank_that_failed_before_its_first_step_has_no_step_minus_one(reader: Client, alice: Any) -> None:
    run = failed(alice, "user_code", "Rank 1 failed.")
    Attempt.objects.filter(run=run).update(progress={"1": {"step": -1, "op": "building", "age": 1.0}})
    assert verdict(run).more == "Rank 1 was last seen building, before its first step."
    assert "-1" not in html(reader, run, "?tab=ranks").split('id="tab"')[1]
    assert "nothing wrong" not in html(reader, run).lower(), "rules judge steps, and there is none"


def test_a_rank_that_failed_while_it_measured_has_no_step(reader: Client, alice: Any) -> None:
    run = failed(alice, "user_code", "Rank 1 failed.")
    seen = {"1": {"step": NO_STEPS, "op": "messages inside a host", "age": 1.0}}
    Attempt.objects.filter(run=run).update(progress=seen)
    assert verdict(run).more == "Rank 1 was last seen while it measured messages inside a host."
    assert str(NO_STEPS) not in html(reader, run, "?tab=ranks").split('id="tab"')[1]


@pytest.mark.parametrize("place", [{"step": 3, "op": "9RECV_GRAD0"}, {"step": 3, "op": None}, "here"])
def test_a_place_that_this_version_cannot_read_does_not_keep_the_page_from_its_reader(alice: Any, place: Any) -> None:
    """As of a worker of another version; of which rank waits for which, the controller leaves it out, too."""
    run = failed(alice, "no_progress", "No rank moved for 60 s: rank 0 at step 3.")
    Attempt.objects.filter(run=run).update(progress={"0": place}, report={})
    found = verdict(Run.objects.get(pk=run.pk))
    assert (found.sentence, found.rank) == ("No rank moved for 60 s: rank 0 at step 3.", None)


def test_of_ranks_that_stood_still_the_log_of_the_one_that_waited_for_no_other_is_quoted(alice: Any) -> None:
    """It was that of rank 0, which only waited."""
    run = failed(alice, "no_progress", "No rank moved for 60 s: rank 0 at step 3; rank 1 at step 3.")
    waits, works = ({"step": 3, "op": op, "age": 60.0} for op in ("0RECV_GRAD0", "1F1"))
    for places, quoted in (({"0": waits, "1": works}, 1), ({"0": works, "1": waits}, 0), ({"0": waits}, None)):
        Attempt.objects.filter(run=run).update(progress=places, report={})
        assert verdict(Run.objects.get(pk=run.pk)).rank == quoted
    Attempt.objects.filter(run=run).update(progress={"0": waits, "1": works})
    assert verdict(Run.objects.get(pk=run.pk)).log.endswith("line 29")


def test_the_button_of_what_would_fix_it_is_filled(client: Client, alice: Any) -> None:
    """Of nine that looked alike."""
    run = failed(alice, "killed_by_signal", "Rank 0 was killed by signal 9 (SIGKILL).")
    client.force_login(alice)
    assert f'class="button primary" href="/runs/{run.pk}/clone"' in html(client, run)
    attempt = Attempt.objects.get(run=run)
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=8, bytes=1, seconds=0.1)
    page = html(client, run)
    assert f'class="button primary" href="/runs/{run.pk}/resume"' in page and page.count("button primary") == 1


@pytest.mark.parametrize(
    "cause", ("user_code", "killed_by_signal", "worker_lost", "timed_out", "no_progress", "refused", "")
)
def test_every_cause_has_a_next_step(alice: Any, cause: str) -> None:
    assert fix(failed(alice, cause)).endswith(".")


@pytest.mark.parametrize(
    "cause",
    ("out_of_memory", "user_code", "killed_by_signal", "worker_lost", "timed_out", "no_progress", "refused", ""),
)
@pytest.mark.parametrize(
    ("task", "again"), [({"links": ["a", "b"]}, "ime the links again on Fleet"), (GENERATION, "enerate again")]
)
def test_what_cannot_be_cloned_is_done_again(alice: Any, cause: str, task: dict[str, Any], again: str) -> None:
    """Nor are links timed with retries."""
    run = failed(alice, cause)
    run.task = task
    assert again in fix(run) and "lone" not in fix(run) and "retr" not in fix(run)


@pytest.mark.parametrize(
    ("cause", "detail", "reach"),
    [
        ("no_progress", "No rank moved for 60 s: rank 0{0}; rank 1{0}.", True),
        ("worker_lost", "Rank 1 lost the connection to another rank{0}. No rank failed by itself: the network …", True),
        ("no_progress", "No rank moved for 60 s: rank 0{0}; rank 1 at step 3 in forward 1.", False),
        ("worker_lost", "Worker yard-b sent no heartbeat for 6 s.", False),
    ],
)
def test_hosts_that_never_met_are_to_reach_each_other(
    two_hosts: None, alice: Any, cause: str, detail: str, reach: bool
) -> None:
    """A firewall between them drops what they send: all ranks wait in connecting."""
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    started(run)
    factory.end(run, State.FAILED, detail.format(" before its first step in connecting"), cause)
    assert ("reach each other on any port" in fix(run)) == reach and "ime the links again" in fix(run)


def test_a_worker_with_an_address_that_is_not_its_own_is_named(reader: Client, alice: Any) -> None:
    said = "AddressError: the host of rank 0 has no address 192.0.2.77: Cannot assign requested address"
    run = failed(alice, "refused", said)
    worker = run.attempts.get().devices[0]["worker"]
    assert fix(run).startswith(f"Set TRAINYARD_ADDRESS on {worker} to an address of its host")
    assert "Failed: the address of its worker" in plain(html(reader, run))


@pytest.mark.parametrize(
    ("cause", "detail", "kind", "title"),
    [
        ("out_of_memory", "Rank 1 ran out of memory.", "memory_hog", "Memory hog"),
        ("not_finite", "The loss is not finite since step 9.", "high_lr", "Learning rate too high"),
        ("user_code", "ReplicasDiffer: step 4", "flipped_bit", "Flipped bit"),
        ("out_of_memory", "Rank 1 ran out of memory.", "slow_data", None),
    ],
)
def test_a_run_that_breaks_itself_is_told_to_leave_that_out(
    alice: Any, cause: str, detail: str, kind: str, title: str | None
) -> None:
    run = failed(alice, cause, detail)
    run.spec["inject"] = [{"kind": kind}]
    said = fix(run)
    assert said.startswith("Clone it ") and (f"without the fault “{title}”" in said) is (title is not None)


def test_a_full_disk_is_no_damaged_checkpoint(alice: Any) -> None:
    run = failed(alice, "user_code", "Rank 0 failed: CheckpointError: [Errno 28] No space left on device")
    run.resume_run = failed(alice)
    assert fix(run).startswith("Clone it once its worker's disk has room")


def test_a_fix_that_takes_more_devices_than_there_are_says_so(alice: Any) -> None:
    tight = {"parallel": {"recompute": "full", "micro_batches": 16}, "trace": {"memory_cap": 8_000_000}}
    run = Run(spec=tight, cause="out_of_memory")
    anywhere = fix(run)
    assert "devices than" not in anywhere
    factory.worker(devices=1)
    assert fix(run).startswith(anywhere) and fix(run).endswith("than one run can have here: 1.")
    factory.worker("yard-b", devices=1)
    Worker.objects.update(across_hosts=False)
    assert fix(run).endswith("than one run can have here: 1."), "though the fleet has 2"


def test_a_fix_of_a_run_that_stays_on_one_host_counts_that_hosts_devices(db: None) -> None:
    tight = {"parallel": {"recompute": "full", "micro_batches": 16}, "trace": {"memory_cap": 8_000_000}}
    for name in ("yard-a", "yard-b", "yard-c", "yard-d"):
        factory.worker(name, devices=1)
    spread = fix(Run(spec=tight, cause="out_of_memory"))
    assert "devices than" not in spread, "it may take the devices of several hosts"
    said = "That takes more devices than one run can have here: 1. All its ranks must be on one host, because "
    assert fix(Run(spec=tight, cause="out_of_memory", host_count=1)) == f"{spread} {said}one was asked for."
    saving = {**tight, "train": {"checkpoint_every": 1}}
    assert f"{spread} {said}its checkpoints lie on one" in fix(Run(spec=saving, cause="out_of_memory"))


def test_out_of_memory_fixes_end_with_something_that_still_helps(db: None) -> None:
    tried = set()
    for split in (
        {},
        {"recompute": "full"},
        {"recompute": "full", "micro_batches": 16},
        {"recompute": "full", "micro_batches": 16, "tp": 4},
    ):
        run = Run(spec=factory.spec_of(split), cause="out_of_memory")
        tried.add(fix(run))
    assert len(tried) == 4


def test_names_are_escaped(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, name=EVIL, tags=[EVIL])
    for tab in TABS:
        assert EVIL not in html(reader, run, f"?tab={tab}")


def test_log_is_read_on_from_where_it_was(reader: Client, alice: Any) -> None:
    run = failed(alice)
    url = reverse("runs:data", args=[run.pk, "log"])
    part = reader.get(url, {"rank": 1, "start": 7}).json()
    assert part["text"].startswith("line 1\n")
    assert part["end"] == part["total"]
    assert reader.get(url, {"rank": 1, "start": part["end"]}).json()["text"] == ""
    assert reader.get(url, {"rank": 7}).json()["total"] == 0


@pytest.mark.parametrize(("retries", "said"), [(0, "with a retry, used if"), (2, "with more retries, used if")])
def test_a_run_that_was_lost_is_to_have_more_retries_than_it_had(alice: Any, retries: int, said: str) -> None:
    run = factory.queued(alice, retries=retries)
    for _ in range(retries + 1):
        states.lose(factory.start(run), "Worker yard-a sent no heartbeat for 6 s.")
    run.refresh_from_db()
    assert run.state == State.LOST and said in fix(run)


def test_of_replicas_that_stood_still_the_log_of_the_one_that_is_not_known_to_have_waited_is_quoted(alice: Any) -> None:
    """A replica may wait for another within an operation; the one in a sum of gradients certainly did: its log, which
    had nothing to say, was quoted where it was rank 0's."""
    run = failed(alice, "no_progress", "No rank moved for 60 s: rank 0 at step 3; rank 1 at step 3.")
    Run.objects.filter(pk=run.pk).update(spec=run.spec | {"parallel": {"dp": 2}})
    sums, works = ({"step": 3, "op": op, "age": 60.0} for op in ("0ALLREDUCE", "0F1"))
    for places, quoted in (({"0": sums, "1": works}, 1), ({"0": works, "1": works}, None)):
        Attempt.objects.filter(run=run).update(progress=places, report={})
        assert verdict(Run.objects.get(pk=run.pk)).rank == quoted
