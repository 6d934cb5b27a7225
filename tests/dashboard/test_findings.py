"""The records of a run that are given to the diagnosis rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dashboard.control.summary import store_summary
from dashboard.runs import findings, selectors
from dashboard.runs.findings import case_of
from dashboard.runs.models import Attempt, Checkpoint, Cursor, RankInfo, Run, State
from dashboard.runs.page import charts, shares
from dashboard.runs.page.verdict import verdict
from dashboard.runs.places import together_of
from parallel_core.analysis.rows import durations
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.spies import noting

pytestmark = pytest.mark.django_db


def traced(attempt: Attempt, *steps: int) -> None:
    """Feeds one span per step, which ends at as many nanoseconds as the number of the step, so that steps can be told
    apart.
    """
    for step in steps:
        rows = np.zeros(1, SPAN)
        rows["end"] = step
        head = {"kind": "spans", "rank": 0, "t": 0.0, "step": step, "count": 1, "total": 1}
        factory.feed(attempt, 0, encode(head, rows.tobytes()))


@pytest.mark.parametrize(
    ("begins", "judged"),
    [
        ({}, [10, 20, 22, 30]),
        ({"step": 0, "why": ""}, [10, 20, 22, 30]),
        ({"step": 20, "run": 1, "attempt": 1}, [30]),
    ],
)
def test_the_first_steps_behind_a_checkpoint_are_not_judged(
    begins: dict[str, Any], judged: list[int], alice: Any
) -> None:
    run = factory.queued(alice, train={"steps": 40, "warmup_steps": 5})
    traced(factory.start(run), 12)
    attempt = factory.start(run)
    Attempt.objects.filter(pk=attempt.pk).update(begins=begins)
    traced(attempt, 2, 10, 20, 22, 30)
    assert [int(step[0]["end"][0]) for step in case_of(run).traced] == judged


def test_the_checkpoints_of_a_case_are_those_that_a_worker_has(alice: Any) -> None:
    run = factory.queued(alice)
    attempt = factory.start(run)
    assert case_of(run).checkpoints == set()
    for worker, step in (("yard-a", 10), ("yard-b", 10), ("yard-b", 30)):
        Checkpoint.objects.create(run=run, attempt=attempt, worker=worker, step=step, bytes=1, seconds=0.1)
    assert case_of(run).checkpoints == {10, 30}


def test_a_loss_that_is_not_finite_is_judged_though_no_step_was_traced_yet(alice: Any) -> None:
    """Such a run ends after a few steps, and a loss that is not finite is stored as none."""
    run = factory.queued(alice, train={"lr": 30.0})
    attempt = factory.start(run)
    assert findings.findings(run).checked == 0, "no step is done"
    factory.feed_losses(attempt, [5.5, 80.0, *[float("nan")] * 5], lr=30.0)
    factory.end(run, State.FAILED, "The loss is not finite since step 2.", "not_finite")
    (card,) = findings.findings(run).cards
    assert card.finding.title == "The loss is not a number from step 2 on."
    assert "train.lr is 30 " in card.finding.evidence


def test_the_rate_before_a_checkpoint_is_that_of_the_run_that_saved_it(alice: Any) -> None:
    source, later = factory.queued(alice), factory.queued(alice, train={"lr": 0.3})
    factory.feed_losses(factory.start(source), [5.0, 4.0, 3.0, 2.5, 2.0], lr=0.003)
    factory.feed_losses(factory.start(later), [3.0, 30.0, 300.0, *[float("nan")] * 5], first=2, lr=0.3)
    assert case_of(source).rate_before is None and case_of(later).rate_before is None
    Run.objects.filter(pk=later.pk).update(resume_run=source, resume_step=2)
    later.refresh_from_db()
    assert case_of(later).rate_before == pytest.approx(0.003)
    factory.end(later, State.FAILED, "The loss is not finite since step 5.", "not_finite")
    (card,) = findings.findings(later).cards
    assert "The learning rate jumped from 0.003 to 0.3 at step 2." in card.finding.evidence
    later.resume_step = 9
    assert case_of(later).rate_before is None, "which it has not"


def test_a_run_that_goes_on_is_not_judged_anew_at_every_step(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = factory.queued(alice)
    judged: list[int | None] = []
    attempt = factory.start(run)
    factory.feed_steps(attempt, 20)
    monkeypatch.setattr(findings, "case_of", noting(case_of, judged, lambda run: run.step))
    for step in (20, 21):
        Run.objects.filter(pk=run.pk).update(step=step)
        run.refresh_from_db()
        findings.findings(run)
    assert judged == [20]
    traced(attempt, 30)
    findings.findings(run)
    assert judged == [20, 21], "another step was traced"
    factory.end(run, State.SUCCEEDED)
    run.refresh_from_db()
    kept = Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=10, bytes=1, seconds=0.1)
    findings.findings(run)
    assert len(judged) == 3, "its end is judged, too"
    kept.delete()
    findings.findings(run)
    findings.findings(run)
    assert len(judged) == 4, "a finding may say which checkpoint is left"


def test_an_ended_run_is_judged_anew_once_more_of_it_has_arrived(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another host, after the end and its summary: here what others used of the devices there."""

    def tell(rank: int, others: float) -> None:
        factory.feed(attempt, rank, encode({"kind": "summary", "rank": rank, "t": 0.0, "cpu_others": others}))

    def rules() -> list[str]:
        return [card.finding.rule for card in findings.findings(run).cards]

    run, judged = factory.queued(alice, {"dp": 2}), list[int]()
    attempt = factory.start(run)
    factory.feed_steps(attempt, 43)
    tell(0, 0.01)
    factory.end(run, State.SUCCEEDED)
    assert "disturbed" not in rules()
    tell(1, 0.6)
    store_summary(run.pk)
    run.refresh_from_db()
    assert "disturbed" in rules()
    monkeypatch.setattr(findings, "case_of", noting(case_of, judged, lambda run: run.pk))
    for _ in range(2):
        rules()
    assert not judged, "nothing has arrived"
    Cursor.objects.create(attempt=attempt, rank=1, channel="events", offset=10)
    for _ in range(2):
        rules()
    assert judged == [run.pk], "what arrives may change no summary, but curves or spans"


def test_a_traced_step_is_analysed_once_for_the_sentence_on_top(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = factory.queued(alice, {"pp": 2, "micro_batches": 4})
    analysed: list[int] = []
    factory.feed_steps(factory.start(run), 20)
    run.refresh_from_db()
    monkeypatch.setattr(selectors, "breakdown", noting(selectors.breakdown, analysed, lambda run, step: step))
    said = {verdict(run).sentence for _ in range(3)}
    assert analysed == [10] and "of the step is pipeline bubble" in said.pop() and not said


def test_of_ranks_that_told_no_device_their_worker_tells_which_share_a_core(alice: Any) -> None:
    """Runs that were recorded before ranks told the number of their device."""
    run = factory.finished(alice, {"dp": 2})
    assert not any("number" in info.hello for info in RankInfo.objects.all())
    assert together_of(run) == 1
    host = factory.worker()
    host.devices = [{**device, "name": "core 0"} for device in host.devices]
    host.save()
    assert together_of(run) == 2 == case_of(run).together
    for info in RankInfo.objects.all():
        info.hello["number"] = info.rank
        info.save()
    assert together_of(run) == 1, "what the ranks told counts"
    RankInfo.objects.update(hello={})
    host.delete()
    assert together_of(run) == 1, "nothing is known of it"


def test_a_step_of_a_retry_is_not_told_as_that_of_the_attempt_before(alice: Any) -> None:
    """The same step, with as many spans: but in the second attempt each rank goes on as long again doing nothing."""
    run, said = factory.queued(alice, {"pp": 2, "micro_batches": 4}), []
    for longer in (1, 2):
        attempt = factory.start(run)
        factory.feed_steps(attempt, 5)  # none of them is traced
        for rank, rows in factory.simulate(RunSpec.stored(run.spec)).items():
            step = rows["kind"] == Kind.STEP
            rows["end"][step] = rows["start"][step] + longer * durations(rows)[step]
            head = {"kind": "spans", "rank": rank, "t": 0.0, "step": 10, "count": len(rows), "total": len(rows)}
            factory.feed(attempt, rank, encode(head, rows.tobytes()))
        run.refresh_from_db()
        made = charts.timeline(run, 10)
        assert made is not None
        said.append((shares.shares(run)["compute"], made.title))
    (first, title), (second, other) = said
    assert second == pytest.approx(first / 2, rel=0.1) and title != other
