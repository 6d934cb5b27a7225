"""A page that shows runs explains the terms in their names, and no term that none of them uses."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from django.test import Client

from dashboard.schedules.cards import CARDS
from dashboard.schedules.glossary import _pipeline as card_of
from dashboard.schedules.glossary import words_of
from parallel_core import schedule
from parallel_core.plan.strategy import label
from parallel_core.schedule.traits import TRAITS, ScheduleName
from parallel_core.spec import RunSpec
from tests.dashboard import factory


def spec(micro_batches: int = 1, **parallel: Any) -> RunSpec:
    train = {"clip": "stage"} if parallel.get("schedule", "").startswith("1f1b-") else {}
    split = {**parallel, "micro_batches": micro_batches}
    return RunSpec.model_validate({"model": {"layers": 4}, "parallel": split, "train": train})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (spec(), ["Single"]),
        (spec(4, recompute="full"), ["Single", "AR", "Micro-batches"]),
        (spec(dp=2, zero=2), ["DP", "ZeRO-2"]),
        (spec(tp=2, sequence=True, tensor_split="pairs"), ["TP", "SP"]),
        (spec(4, pp=2, schedule="gpipe", dp=2), ["DP", "PP-GPipe", "Micro-batches", "Bubble"]),
        (spec(4, pp=2, schedule="1f1b-stash"), ["PP-1F1B async, stashed", "Micro-batches", "Bubble"]),
    ],
)
def test_each_name_of_a_label_is_said_once(given: RunSpec, names: list[str]) -> None:
    words = words_of([given, given])
    assert [word.name for word in words] == names
    assert all(word.place in {"", *(card.key for card in CARDS)} and word.meaning for word in words)
    assert all(name in label(given) for name in names if name not in ("Micro-batches", "Bubble"))


def test_every_schedule_has_a_card() -> None:
    without = [name for name in get_args(ScheduleName) if card_of(TRAITS[name].label) is None]
    assert without == ["custom"], "a card in dashboard/schedules/cards.py says what it is: its label is in `seen`"


def test_a_card_of_another_schedule_is_not_that_of_one_whose_label_begins_alike() -> None:
    assert card_of("PP-1F1B twice") is card_of("PP-ZB") is None


@pytest.mark.django_db
def test_a_study_and_a_comparison_say_them(admin_client: Client, alice: Any) -> None:
    study = factory.study(alice, "Starter")
    runs = ",".join(str(run.pk) for run in study.runs.all())
    for address in (f"/studies/{study.pk}/", f"/compare/?runs={runs}"):
        page = admin_client.get(address).content.decode()
        assert 'href="/schedules/strategies/#dp">Data parallel</a>. Every device holds the whole model' in page, address


def test_schedules_that_share_a_card_are_not_given_each_others_idea() -> None:
    kinds = schedule.names()
    meanings = {kind: words_of([spec(4, pp=2, schedule=kind)])[0].meaning for kind in kinds}
    assert len(set(meanings.values())) == len(kinds), "say it in MEANINGS of dashboard/schedules/glossary.py"
    assert "keeps the weights" in meanings["1f1b-stash"] and "keeps no older weights" in meanings["1f1b-naive"]
    assert "two versions" in meanings["1f1b-2bw"] and "after every backward" not in meanings["1f1b-2bw"]
