"""The range beside a predicted step: by the host's own earlier predictions, once there are enough."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.ledger import records, selectors
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.ledger.ranges import Range
from dashboard.ledger.services import settle
from dashboard.runs import submission
from dashboard.runs.form.panel import Panel
from parallel_core.analysis.quantities import range_text
from parallel_core.simulate.likely import ENOUGH, RunKind
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.test_ledger_predictions import submitted

pytestmark = pytest.mark.django_db
REPLICAS: list[dict[str, Any]] = [
    {"dp": 2, "zero": zero, "micro_batches": parts} for zero in (0, 1, 2) for parts in (1, 2, 4, 8)
]
"""More different steps than are enough."""
RATIOS = [1.1 + 0.02 * i for i in range(ENOUGH)]


def likely(split: dict[str, Any]) -> tuple[float, Range]:
    """The predicted seconds of a run and the range beside them."""
    found = selectors.predicted(RunSpec.model_validate({**factory.PROFILED.model_dump(), "parallel": split}))
    assert found.likely is not None and found.seconds
    return found.seconds, found.likely


def ran(alice: Any, splits: list[dict[str, Any]], others: float = 0.0) -> None:
    """Runs that took RATIOS of what was predicted."""
    for split, ratio in zip(splits, RATIOS, strict=False):
        run, said = submitted(alice, split)
        assert said.seconds
        settle(run, {"timed": {"median": ratio * said.seconds}, "memory": None, "cpu_others": others})


def test_enough_earlier_runs_of_its_kind_make_the_range(profile: Profile, alice: Any, member: Client) -> None:
    ran(alice, REPLICAS[: ENOUGH - 1])
    seconds, before = likely({"dp": 2})
    assert before.earlier == 0 and before.low < seconds < before.high
    ran(alice, REPLICAS[:ENOUGH])
    seconds, after = likely({"dp": 2})
    assert (after.earlier, after.kind) == (ENOUGH, RunKind.APART)
    assert (after.low, after.high) == pytest.approx((RATIOS[0] * seconds, RATIOS[-1] * seconds))
    run, said = submitted(alice, {"dp": 2})
    assert (said.low_seconds, said.high_seconds, said.earlier) == (after.low, after.high, ENOUGH)
    words = f"eight of ten such runs take {range_text(after.low, after.high)}, by 9 earlier ones on yard-a"
    assert f"predicted ({words} that had a device for each rank)" in Panel.of(submission.assess(run.spec)).step
    assert likely({})[1].kind is None, "runs of other kinds count by how far these are usually off"


def test_a_step_counts_once_and_a_disturbed_one_never(profile: Profile, alice: Any) -> None:
    ran(alice, [{"dp": 2}] * ENOUGH)
    assert likely({"dp": 2})[1].earlier == 0
    ran(alice, REPLICAS, others=0.5)
    assert likely({"dp": 2})[1].earlier == 0


def test_what_a_table_was_off_by_that_is_not_used_any_more_does_not_count(profile: Profile, alice: Any) -> None:
    ran(alice, REPLICAS)
    assert likely({"dp": 2})[1].earlier == ENOUGH
    again = Profile.objects.get(pk=profile.pk)
    again.pk, again.base = None, profile
    again.save()
    assert likely({"dp": 2})[1].earlier == 0
    Profile.objects.filter(pk=again.pk).update(state=ProfileState.UNDONE)
    assert likely({"dp": 2})[1].earlier == ENOUGH


def test_another_host_has_errors_of_its_own(profile: Profile, alice: Any) -> None:
    ran(alice, REPLICAS)
    newer = factory.profiled(alice, factory.worker("yard-b"), factory.PROFILED)
    spec = RunSpec.model_validate({**factory.PROFILED.model_dump(), "parallel": {"dp": 2}})
    for host, used, earlier in (("yard-b", newer, 0), ("yard-a", profile, ENOUGH)):
        found = selectors.predicted(spec, [host, host])
        assert found.profile == used and found.likely is not None and found.likely.earlier == earlier


def test_an_older_range_is_not_held_against_what_it_never_said(profile: Profile, alice: Any, member: Client) -> None:
    ran(alice, REPLICAS[:2])
    assert len(records.time_record().as_likely) == 2
    newest = Prediction.objects.order_by("-pk")[0]
    Prediction.objects.filter(pk=newest.pk).update(earlier=None)
    assert len(records.time_record().as_likely) == 1
    assert "as its devices drift" in member.get(reverse("ledger:record")).content.decode()


@pytest.mark.full
def test_runs_of_more_than_the_newest_minutes_count(profile: Profile, alice: Any) -> None:
    """The newest few dozen were often of the same minutes, in which a host has one pace."""
    for _ in range(5):
        ran(alice, REPLICAS)
        profile.pk, profile.done_at = None, timezone.now()  # the host is profiled again, and runs the same steps
        profile.save()
    assert likely({"dp": 2})[1].earlier == 5 * ENOUGH
