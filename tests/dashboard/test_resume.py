"""Checkpoints in the yard: rows follow the disk, later attempts say where they start, and the form "Resume as…"."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control.dispatch import start_message
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.placement.assignments import plan
from dashboard.placement.finding import Wait
from dashboard.runs import removal, services, states
from dashboard.runs.form import spec_fields
from dashboard.runs.form.entry import html_name
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.runs.page.fix import fix
from dashboard.runs.waiting import asking, queue, turns
from parallel_core.analysis.meters import Work
from parallel_core.observe.record_files import encode
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import error_at
from tests.dashboard.test_api import bearer, post

pytestmark = pytest.mark.django_db


@pytest.fixture
def saved(alice: Any) -> Run:
    """A run on yard-a with checkpoints at steps 10 and 20."""
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    for step, kept in ((5, [5]), (10, [5, 10]), (20, [10, 20])):
        factory.feed(attempt, 0, frame(step, kept))
    return Run.objects.get(pk=run.pk)


def frame(step: int, kept: list[int], **more: float) -> bytes:
    sizes = {"step": step, "bytes": 1000, "seconds": 0.1, "kept": kept}
    return encode({"kind": "checkpoint", "rank": 0, "t": 1.0, **sizes, **more})


def form_of(spec: dict[str, Any], **changes: str) -> dict[str, str]:
    values = {"name": "again", "tags": "", "retries": "0", **spec_fields.from_spec(spec), **changes}
    return {name: value for name, value in values.items() if value is not False}


def test_rows_follow_what_the_worker_keeps(saved: Run) -> None:
    rows = Checkpoint.objects.filter(run=saved).values_list("step", "worker", "bytes")
    assert list(rows) == [(10, "yard-a", 1000), (20, "yard-a", 1000)]


def test_a_record_that_comes_again_with_the_held_out_loss_adds_it_to_the_row(member: Client, saved: Run) -> None:
    """And deletes the row of the checkpoint that was the best until then."""
    factory.feed(saved.attempts.get(), 0, frame(20, [20], held_out=2.25))
    assert list(saved.checkpoints.values_list("step", "held_out")) == [(20, 2.25)]
    table = member.get(f"/runs/{saved.pk}/", {"tab": "events"}).content.decode()
    assert "2.25" in table


def test_choices_name_the_checkpoint_of_the_lowest_held_out_loss(member: Client, saved: Run) -> None:
    """With two at least whose loss is known."""
    remark = "lowest held-out loss, 2."
    factory.feed(saved.attempts.get(), 0, frame(30, [10, 20, 30], held_out=2.25))
    assert remark not in member.get(f"/runs/{saved.pk}/resume").content.decode()
    factory.feed(saved.attempts.get(), 0, frame(40, [10, 20, 30, 40], held_out=2.5))
    resume = member.get(f"/runs/{saved.pk}/resume").content.decode()
    assert f">step 30</a> ({remark}25)" in resume and resume.count(remark) == 1
    generate = member.get(f"/runs/{saved.pk}/generate").content.decode()
    assert f"step 30, {remark}25</option>" in generate and generate.count(remark) == 1
    detail = member.get(f"/api/v1/runs/{saved.pk}").json()["data"]
    assert [one["held_out"] for one in detail["checkpoints_detail"]] == [None, None, 2.25, 2.5]


def test_a_retry_prefers_the_host_of_its_checkpoints(saved: Run) -> None:
    states.lose(saved.attempts.get(), "")
    Run.objects.filter(pk=saved.pk).update(state="queued")
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert (request.prefer, request.needs) == ("yard-a", ())


def test_a_later_attempt_says_where_it_began(member: Client, saved: Run) -> None:
    first = saved.attempts.get()
    Run.objects.filter(pk=saved.pk).update(retries_left=1)
    states.lose(first, "Its worker was lost.")
    second = states.place(saved, first.devices, Worker.objects.get(name="yard-a"))
    states.running(second, {"step": 20, "run": saved.pk, "attempt": first.pk, "why": ""})
    assert "resumed from step 20 of attempt 1" in saved.events.order_by("-pk")[0].text
    assert "resumed from step 20 of attempt 1" in member.get(f"/runs/{saved.pk}/").content.decode()
    begins = {"step": 10, "run": saved.pk, "attempt": first.pk, "why": "the checkpoint after 20 steps is damaged"}
    Attempt.objects.filter(pk=second.pk).update(begins=begins)
    told = "resumed from step 10 of attempt 1, as the checkpoint after 20 steps is damaged"
    assert told in member.get(f"/runs/{saved.pk}/").content.decode()
    Attempt.objects.filter(pk=second.pk).update(begins={"step": 0, "why": "no checkpoint of it is on yard-b"})
    assert "from step 0: no checkpoint of it is on yard-b" in member.get(f"/runs/{saved.pk}/").content.decode()


def test_a_run_whose_retry_had_only_to_end_has_what_was_measured_before(member: Client, alice: Any) -> None:
    """Its worker was killed behind its last checkpoint: the retry tells no points, no spans and no summary."""
    run = factory.queued(alice, {"dp": 2})
    first = factory.start(run)
    factory.feed_steps(first, 43)
    second = factory.start(run)
    Attempt.objects.filter(pk=second.pk).update(begins={"step": 43, "run": run.pk, "attempt": first.pk, "why": ""})
    for rank in range(2):
        factory.feed(second, rank, encode({"kind": "phase", "rank": rank, "t": 2.0, "phase": "done", "step": 43}))
    factory.end(run, State.SUCCEEDED)
    assert (run.summary["timed"]["n"], run.summary["breakdown_step"], run.step) == (40, 10, 42)
    assert run.summary["memory"] and run.summary["final_loss"] and run.summary["meters"]["tokens_per_s"] > 0
    meters = run.summary["meters"]
    speeds = Work.of(RunSpec.model_validate(run.spec)).speeds(run.summary["timed"]["median"], 2 * factory.PEAK)
    assert meters["mfu"] == pytest.approx(speeds["mfu"], rel=1e-3) and meters["hfu"] >= meters["mfu"]
    page = member.get(f"/runs/{run.pk}/").content.decode()
    assert "resumed from step 43 of attempt 1" in page


def test_resume_as_fills_the_form(member: Client, saved: Run) -> None:
    assert f"/runs/{saved.pk}/resume" in member.get(f"/runs/{saved.pk}/").content.decode()
    page = member.get(f"/runs/{saved.pk}/resume").content.decode()
    assert f'value="{saved.pk}:20"' in page and "Resume “" in page
    Run.objects.filter(pk=saved.pk).update(retries_left=2)
    assert member.get(f"/runs/{saved.pk}/resume").context["form"]["retries"].value() == 2
    assert f'value="{saved.pk}:10"' in member.get(f"/runs/{saved.pk}/resume?step=10").content.decode()


def test_resume_as_does_not_call_the_next_run_by_the_strategy_of_this_one(member: Client, saved: Run) -> None:
    assert saved.name == saved.label
    assert member.get(f"/runs/{saved.pk}/resume").context["form"]["name"].value() == ""
    Run.objects.filter(pk=saved.pk).update(name="mine")
    assert member.get(f"/runs/{saved.pk}/resume?step=10").context["form"]["name"].value() == "mine (from step 10)"


def test_resume_as_of_a_run_that_is_done_has_steps_left(member: Client, saved: Run) -> None:
    """The form must not start with an error: as many steps again are filled in."""
    factory.feed(saved.attempts.get(), 0, frame(43, [20, 43]))
    done = member.get(f"/runs/{saved.pk}/resume")
    assert done.context["form"].initial["train__steps"] == "86"
    assert not done.context["form"].assessment.errors and "as many again are filled in" in done.content.decode()
    before = member.get(f"/runs/{saved.pk}/resume?step=20")
    assert before.context["form"].initial["train__steps"] == "43"
    assert "as many again" not in before.content.decode()


def test_a_clone_begins_from_the_checkpoint_of_its_source_with_as_many_retries(
    member: Client, alice: Any, saved: Run
) -> None:
    spec = {**saved.spec, "parallel": {"tp": 2}}
    run = services.submit(owner=alice, spec=spec, resume_from={"run": saved.pk, "step": 10}, retries=1)
    states.lose(factory.start(run), "its worker was silent")
    address = f"/runs/{run.pk}/clone"
    page = member.get(address)
    form = page.context["form"]
    assert (form["resume_from"].value(), form["retries"].value()) == (f"{saved.pk}:10", 1)
    assert f'it begins from step 10 of <a href="/runs/{saved.pk}/">' in page.content.decode()
    sent = form_of(spec, resume_from=form["resume_from"].value(), retries=form["retries"].value())
    assert member.post("/runs/new/", sent).status_code == 302
    made = Run.objects.latest("pk")
    assert (made.resume_run_id, made.resume_step, made.retries_left) == (saved.pk, 10, 1)
    saved.checkpoints.filter(step=10).delete()
    page = member.get(address)
    assert page.context["form"]["resume_from"].value() == "" and not page.context["form"].assessment.errors
    anew = "That one began from step 10 of another; this one begins anew."
    assert f"{anew} Run {saved.pk} has no checkpoint at step 10; it has steps 20." in page.content.decode()
    Run.objects.exclude(pk=saved.pk).update(state=State.CANCELLED)
    Run.objects.filter(pk=saved.pk).update(state=State.SUCCEEDED)
    removal.delete(runs=[saved.pk], user=alice)
    text = member.get(address).content.decode()
    assert f"{anew} The run whose checkpoint that was has been deleted." in text
    assert "begins anew." not in member.get(f"/runs/{factory.queued(alice).pk}/clone").content.decode()


def test_a_run_without_checkpoints_has_nothing_to_resume(member: Client, alice: Any) -> None:
    run = factory.queued(alice)
    assert "/resume" not in member.get(f"/runs/{run.pk}/").content.decode()
    assert member.get(f"/runs/{run.pk}/resume").status_code == 404


def test_another_layout_is_queued_and_its_worker_is_told(member: Client, saved: Run) -> None:
    spec = {**saved.spec, "parallel": {"tp": 2}}
    answer = member.post("/runs/new/", form_of(spec, resume_from=f"{saved.pk}:10"))
    assert answer.status_code == 302, answer.content.decode()
    run = Run.objects.latest("pk")
    assert (run.resume_run_id, run.resume_step) == (saved.pk, 10)
    request = next(found for found in asking.requests(asking.queued_runs(turns.queue_order())) if found.run == run.pk)
    assert request.needs == ("yard-a",)
    attempt = states.place(run, saved.attempts.get().devices, Worker.objects.get(name="yard-a"))
    assert start_message(attempt)["resume"] == {"run": saved.pk, "step": 10}
    Worker.objects.update(draining=True)


def test_what_it_waits_for_names_the_host(alice: Any, saved: Run) -> None:
    run = services.submit(owner=alice, spec=saved.spec, resume_from={"run": saved.pk, "step": 10})
    Worker.objects.create(name="yard-b", heartbeat_at=Worker.objects.get().heartbeat_at, devices=[])
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert "Waits for worker yard-a, which has the checkpoint" in queue.waiting(run).sentence


@pytest.mark.parametrize(
    ("named", "path", "value", "field", "told"),
    [
        ("{run}:10", "model.hidden", "256", "model__hidden", "The checkpoint was saved with Hidden size = "),
        ("{run}:10", "train.precision", "fp64", "train__precision", "The checkpoint was saved with Precision = fp32"),
        ("{run}:10", "train.steps", "10", "train__steps", "Steps = 10 leaves none to train"),
        ("{run}:11", "train.lr", "0.1", "resume_from", "no checkpoint at step 11; it has steps 10, 20."),
        ("99999:1", "train.lr", "0.1", "resume_from", "There is no run 99999."),
        ("../../etc", "train.lr", "0.1", "resume_from", "Write the run's number and the step"),
    ],
)
def test_what_does_not_fit_is_said_at_its_field(
    member: Client, saved: Run, named: str, path: str, value: str, field: str, told: str
) -> None:
    form = form_of(saved.spec, resume_from=named.format(run=saved.pk), **{html_name(path): value})
    answer = member.post("/runs/new/", form)
    assert answer.status_code == 422
    assert told in error_at(answer.content.decode(), field)
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("fault", "precision", "field", "told"),
    [
        ({"kind": "flipped_bit", "step": 5}, "fp32", "inject.flipped_bit.step", "step=5 never comes; use step=10"),
        ({"kind": "high_scale"}, "fp16", "inject.high_scale", "leave this fault out"),
        ({"kind": "flipped_bit", "step": 10}, "fp32", "", ""),
        ({"kind": "high_lr"}, "fp32", "", ""),
    ],
)
def test_a_fault_that_the_checkpoint_leaves_without_effect_is_refused(
    alice: Any, saved: Run, fault: dict[str, Any], precision: str, field: str, told: str
) -> None:
    """Its run would be called broken on purpose, and nothing in it would be."""
    spec = {**saved.spec, "train": {**saved.spec["train"], "precision": precision}}
    Run.objects.filter(pk=saved.pk).update(spec=spec)
    asked: services.RunRequest = {"spec": {**spec, "inject": [fault]}, "resume_from": {"run": saved.pk, "step": 10}}
    refused = services.refusal(alice, asked)
    assert list(refused) == ([field] if field else [])
    assert told in refused.get(field, "")
    assert not services.refusal(alice, {"spec": asked["spec"]}), "a run of its own, from its first step"


def test_what_was_refused_is_still_to_be_resumed(member: Client, saved: Run) -> None:
    """The heading, the list of checkpoints and all input are kept; a reference to no known checkpoint makes it a new
    run, and so does another form that names a checkpoint, such as that of a clone.
    """
    asks = 'name="resumes" value="1"'
    assert asks in member.get(f"/runs/{saved.pk}/resume").content.decode()
    form = form_of(
        saved.spec, resumes="1", resume_from=f"{saved.pk}:10", name="my words", tags="a, b", train__lr="fast"
    )
    page = member.post("/runs/new/", form).content.decode()
    assert f"<h1>Resume “{saved.name}” as…</h1>" in page and 'Put right <a href="#f-train__lr">' in page
    assert f'href="/runs/{saved.pk}/resume?step=10" aria-current="true"' in page
    assert all(f'value="{typed}"' in page for typed in ("my words", "a, b", "fast", f"{saved.pk}:10"))
    for other in ("", "99999:1", "words"):
        page = member.post("/runs/new/", form | {"resume_from": other}).content.decode()
        assert "<h1>New run</h1>" in page
    del form["resumes"]
    page = member.post("/runs/new/", form).content.decode()
    assert "<h1>New run</h1>" in page and asks not in page and f'value="{saved.pk}:10"' in page


def test_the_api_takes_and_shows_it(client: Client, alice: Any, saved: Run) -> None:
    headers = bearer(alice, Scope.SUBMIT)
    named = {"run": saved.pk, "step": 20}
    answer = post(client, {"spec": {**saved.spec, "parallel": {"pp": 2}}, "resume_from": named}, headers)
    assert answer.status_code == 201, answer.content
    assert answer.json()["data"]["resume_from"] == named
    answer = post(client, {"spec": saved.spec, "resume_from": {**named, "step": 7}}, headers)
    assert answer.status_code == 422
    assert "no checkpoint at step 7" in answer.json()["error"]["fields"]["resume_from"]
    found = client.get(f"/api/v1/runs/{saved.pk}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert found["checkpoints"] == [10, 20] and found["resume_from"] is None


def needed(run: Run) -> tuple[str, ...]:
    (request,) = asking.requests([run])
    return request.needs


def test_what_lies_in_a_shared_folder_is_taken_without_its_writer(alice: Any, saved: Run) -> None:
    """The worker that wrote it is offline; of the two others, the one that shares the folder can take the run."""
    nodes = [{**node, "shares": True} for node in saved.attempts.get().devices]
    saved.attempts.update(devices=nodes, over=True)
    run = services.submit(owner=alice, spec=saved.spec, resume_from={"run": saved.pk, "step": 10})
    factory.worker("yard-b")
    factory.worker("yard-c")
    Worker.objects.filter(name="yard-c").update(shared_checkpoints=True)
    Worker.objects.filter(name="yard-a").update(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert needed(run) == ("yard-a", "yard-c")
    ((_, (share,)),) = plan(asking.requests([run]), hosts()).placed
    assert share.host == "yard-c"
    Worker.objects.filter(name="yard-c").update(draining=True)
    assert plan(asking.requests([run]), hosts()).waits[run.pk] == (Wait.CHECKPOINT, ("yard-a", "yard-c"))
    assert "Waits for yard-a and yard-c, one of which must be there for the checkpoint" in queue.waiting(run).sentence


def test_what_its_writer_kept_to_itself_waits_for_it(alice: Any, saved: Run) -> None:
    """It shares a folder now, as another worker does, but the checkpoint was written before that."""
    run = services.submit(owner=alice, spec=saved.spec, resume_from={"run": saved.pk, "step": 10})
    factory.worker("yard-b")
    Worker.objects.update(shared_checkpoints=True)
    assert needed(run) == ("yard-a",)
    saved.attempts.update(over=True)
    Worker.objects.filter(name="yard-a").update(draining=True)
    which = "Waits for worker yard-a, which has the checkpoint it begins from;"
    assert queue.waiting(run).sentence == f"{which} it is away or draining."


def test_the_worker_that_has_its_checkpoint_is_named_after_it_was_removed(alice: Any, saved: Run) -> None:
    run = services.submit(owner=alice, spec=saved.spec, resume_from={"run": saved.pk, "step": 10})
    factory.worker("yard-b")
    saved.attempts.update(over=True, worker=None)
    Worker.objects.filter(name="yard-a").delete()
    which = "Waits for worker yard-a, which has the checkpoint it begins from;"
    assert queue.waiting(run).sentence == f"{which} it was removed."


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("refused", "The checkpoint step-00000020 is damaged: rank-0.bin has 1 bytes instead of 2."),
        ("user_code", "Rank 0 failed before its first step in loading: CheckpointError: step-00000020 was changed."),
    ],
)
def test_a_damaged_checkpoint_leads_to_another_one(alice: Any, saved: Run, cause: str, said: str) -> None:
    run = factory.queued(alice, {"dp": 2}, resume_from={"run": saved.pk, "step": 20})
    factory.start(run)
    factory.end(run, State.FAILED, said, cause)
    run = Run.objects.get(pk=run.pk)
    assert fix(run) == f"Resume it from another checkpoint of run {saved.pk}: step 10."
    Checkpoint.objects.filter(step=10).delete()
    assert fix(run) == f"Run {saved.pk} has no other checkpoint. Clone it with nothing in Resume from."
    run.task = {"prompt": [1]}
    assert fix(run) == f"Run {saved.pk} has no other checkpoint. Clone run {saved.pk}, which makes new ones."
