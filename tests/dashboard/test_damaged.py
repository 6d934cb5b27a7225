"""A checkpoint that a run found damaged is marked wherever one can be chosen, and another one is preselected."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.api.models import Scope
from dashboard.runs import resuming
from dashboard.runs.damaged import damaged
from dashboard.runs.models import Checkpoint, Run, State
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.test_api import bearer
from tests.dashboard.test_resume import form_of, frame

WHAT = "is damaged: rank-0.bin has 1 bytes instead of 2"


@pytest.fixture
def saved(alice: Any) -> Run:
    """A run on yard-a with checkpoints at steps 10 and 20."""
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    for step, kept in ((10, [10]), (20, [10, 20])):
        factory.feed(attempt, 0, frame(step, kept))
    return Run.objects.get(pk=run.pk)


def resumed(owner: Any, source: Run, step: int, said: str, cause: str = "refused", state: State = State.FAILED) -> Run:
    run = factory.queued(owner, {"dp": 2}, resume_from={"run": source.pk, "step": step})
    factory.start(run)
    factory.end(run, state, said, cause)
    return run


@pytest.fixture
def finder(alice: Any, saved: Run) -> Run:
    return resumed(alice, saved, 20, f"The checkpoint /disk/{saved.pk}/step-00000020 {WHAT}.")


def test_the_run_page_says_it_and_offers_the_other(member: Client, saved: Run, finder: Run) -> None:
    page = plain(member.get(f"/runs/{saved.pk}/").content.decode())
    assert f"The checkpoint after 20 steps {WHAT}." in page and 'id="resume"' in page
    assert f'<a href="/runs/{finder.pk}/">Run {finder.pk}</a> found it.' in page
    Checkpoint.objects.filter(step=10).delete()
    page = member.get(f"/runs/{saved.pk}/").content.decode()
    assert 'id="resume"' not in page and 'id="damaged"' in page


def test_resume_as_begins_with_a_sound_one_and_marks_the_other(member: Client, saved: Run, finder: Run) -> None:
    page = member.get(f"/runs/{saved.pk}/resume").content.decode()
    assert f'value="{saved.pk}:10"' in page and "panel-doubt" not in page
    assert f'step 20</a> (damaged, <a href="/runs/{finder.pk}/">run {finder.pk}</a> found)' in page
    page = member.get(f"/runs/{saved.pk}/resume?step=20").content.decode()
    assert f"Run {finder.pk} was to begin from it and found: The checkpoint after 20 steps {WHAT}." in page
    assert "Step 10 is not known to be." in page


def test_what_is_typed_into_the_form_is_told_of_it(member: Client, saved: Run, finder: Run) -> None:
    told = member.post("/runs/new/check", form_of(saved.spec, resume_from=f"{saved.pk}:20")).content.decode()
    assert "Its checkpoint is damaged." in told and WHAT in told
    told = member.post("/runs/new/check", form_of(saved.spec, resume_from=f"{saved.pk}:10")).content.decode()
    assert "Its checkpoint is damaged." not in told


def test_text_is_generated_from_a_sound_one_first(member: Client, saved: Run, finder: Run) -> None:
    choices = member.get(f"/runs/{saved.pk}/generate").context["form"].fields["step"].choices
    assert choices == [("10", "step 10"), ("20", f"step 20, which run {finder.pk} found damaged")]


def test_the_api_leaves_it_out(client: Client, alice: Any, saved: Run, finder: Run) -> None:
    found = client.get(f"/api/v1/runs/{saved.pk}", headers=bearer(alice, Scope.READ)).json()["data"]
    assert found["checkpoints"] == [10]


@pytest.mark.parametrize(
    ("said", "cause", "state", "bad"),
    [
        (
            f"Rank 0 failed in loading: CheckpointError: The checkpoint step-00000020 {WHAT}.",
            "user_code",
            "failed",
            True,
        ),
        ("The checkpoint /disk/1/step-00000020 was changed: w in a.bin does not match.", "refused", "failed", True),
        (f"The checkpoint /disk/2/step-00000030 {WHAT}.", "user_code", "failed", False),
        ("Worker yard-a has no checkpoint of run 1 at step 20; it has steps 10.", "refused", "failed", False),
        ("Rank 0 was killed by signal 9.", "killed_by_signal", "failed", False),
        (f"The checkpoint step-00000020 {WHAT}.", "", "cancelled", False),
    ],
)
def test_only_what_says_so_marks_it(alice: Any, saved: Run, said: str, cause: str, state: str, bad: bool) -> None:
    """Neither damage of another step (of the run's own checkpoint, resumed by a retry) nor a missing file marks the
    checkpoint.
    """
    resumed(alice, saved, 20, said, cause, State(state))
    assert (20 in damaged(saved)) is bad
    assert resuming.sound(saved) == ([10] if bad else [10, 20])


def test_one_that_was_written_again_or_served_since_is_sound(alice: Any, saved: Run, finder: Run) -> None:
    assert 20 in damaged(saved)
    later = resumed(alice, saved, 20, "", "", State.SUCCEEDED)
    assert damaged(saved) == {}
    later.delete()
    factory.feed(saved.attempts.get(), 0, frame(20, [10, 20]))
    assert damaged(saved) == {}
