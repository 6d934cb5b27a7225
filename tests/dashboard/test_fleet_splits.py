"""What is said of the splits for this fleet besides their times."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.ledger.models import Profile
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.run_analyst import answered

pytestmark = pytest.mark.django_db
NORMED = "splits with other numbers of micro-batches train something else"


@pytest.mark.full
def test_times_alone_do_not_decide_what_batch_norms_see(
    member: Client, worker: Worker, alice: Any, profile: Profile
) -> None:
    model, train = {"kind": "resnet50", "width": 2}, {"global_batch": 8, "corpus": "digits"}
    made = factory.profiled(alice, worker, RunSpec.model_validate({"model": model, "train": train}))
    said = [
        plain(answered(member, f"/partition/fleet/?profile={each.pk}&devices=1").content.decode())
        for each in (made, profile)
    ]
    assert f"Its 53 batch norms see one micro-batch at a time: {NORMED}." in said[0]
    assert "2 micro-batches" in said[1] and NORMED not in said[1]


def test_a_gain_that_devices_cannot_give_is_doubted(member: Client, worker: Worker, profile: Profile) -> None:
    """As by a profile whose single device others disturbed: it was told as any other."""
    page = answered(member, f"/partition/fleet/?profile={profile.pk}&devices=2").context["page"]
    alone, pair = (next(one for one in page.found.able if one.devices == count) for count in (1, 2))
    for gain, doubted in ((2.1, False), (2.39, True)):
        fast = pair.model_copy(update={"seconds": alone.seconds / gain, "name": "TP 2"})
        page.found = page.found.model_copy(update={"able": (fast, alone)})
        assert (
            any("2 devices, as predicted for TP 2, is more than devices usually give" in s for s in page.sentences())
            == doubted
        )
    assert page.sentences()[1].startswith("2.39x on 2 devices, ")


def test_splits_that_may_be_as_fast_are_counted(member: Client, worker: Worker, profile: Profile) -> None:
    """The first was the fastest of 92, however little the next ones were behind it."""
    page = answered(member, f"/partition/fleet/?profile={profile.pk}&devices=2").context["page"]
    fast = page.found.able[0]
    for behind, said in (((1.06, 1.2), ""), ((1.04, 1.06), "1 other split may"), ((1.01, 1.04), "2 other splits may")):
        others = [fast.model_copy(update={"seconds": fast.seconds * factor}) for factor in behind]
        page.found = page.found.model_copy(update={"able": (fast, *others)})
        close = [sentence for sentence in page.sentences() if "may be as fast: within 5 % of it" in sentence]
        assert [sentence.startswith(said) for sentence in close] == ([True] if said else [])


def test_what_is_extrapolated_and_what_was_not_tried_is_said(member: Client, worker: Worker, profile: Profile) -> None:
    """A time beyond what was timed looked like any other, and sequence parallelism was left out without a word."""
    answer = answered(member, f"/partition/fleet/?profile={profile.pk}&devices=2")
    said = "Tensor groups by columns and with sequence parallelism were not tried: the profile did not time them."
    assert said in plain(answer.content.decode()) and "extrapolated" not in answer.content.decode()
    page = answer.context["page"]
    fast, *rest = page.found.able
    page.found = page.found.model_copy(
        update={"able": (fast.model_copy(update={"beyond": ("8 by 4", "9 by 2")}), *rest), "untimed": ()}
    )
    assert page.untried == "" and page.sentences()[1] == "Its time is extrapolated: 8 by 4 and 9 by 2."
    assert [row.beyond for row in page.rows()[:2]] == ["8 by 4 and 9 by 2", ""]
