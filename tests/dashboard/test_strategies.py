"""The Strategies page: every card shows the planner's numbers, its links work, and its runs are those of the yard."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.form.presets import BY_KEY
from dashboard.schedules.cards import CARDS
from dashboard.schedules.pictures import picture
from dashboard.schedules.strategies import predicted, spec_of
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.strategy import label
from parallel_core.spec import RunSpec
from tests.dashboard import factory

SPLIT = [card for card in CARDS if card.split is not None]


@pytest.mark.parametrize("card", SPLIT, ids=lambda card: card.key)
def test_a_card_shows_what_the_planner_says(card: Any) -> None:
    shown = predicted(card)
    assert shown is not None
    assert {bar.category for bar in shown.bars} == {
        k for k, size in worst_stage(spec_of(card)).as_dict().items() if size
    }
    assert all(0 < bar.width <= 100 for bar in shown.bars)
    assert all(rect.x + rect.width <= 320.02 for rect in shown.rects)
    rows = {rect.y for rect in shown.rects}
    assert len(rows) == spec_of(card).parallel.world, "one row per device"


@pytest.mark.parametrize("card", [card for card in CARDS if card.preset], ids=lambda card: card.key)
def test_run_it_is_a_preset_that_would_be_seen_here(card: Any) -> None:

    named = label(RunSpec.model_validate(BY_KEY[card.preset].spec))
    assert named.startswith(card.seen), named


def test_what_splits_saves_memory_and_what_waits_does_not_save_time() -> None:
    totals = {card.key: worst_stage(spec_of(card)).total for card in SPLIT}
    assert totals["zero"] < totals["dp"]
    assert totals["sp"] < totals["tp"]
    assert totals["1f1b"] < totals["gpipe"]
    found = predicted(next(c for c in CARDS if c.key == "ar"))
    assert found
    bars = {bar.category: bar.width for bar in found.bars}
    assert sum(bars.values()) < 50, "recomputation alone halves the memory of a single device"


def test_the_page_links_to_runs_that_used_it(client: Client, alice: Any) -> None:
    client.force_login(alice)
    empty = client.get(reverse("schedules:strategies")).content.decode()
    assert empty.count("Not run in this yard yet.") == sum(bool(card.seen) for card in CARDS)
    run = factory.finished(alice, {"pp": 2, "schedule": "gpipe", "micro_batches": 4})
    page = client.get(reverse("schedules:strategies")).content.decode()
    assert f'href="{reverse("runs:page", args=[run.pk])}"' in page
    assert page.count("Seen in this yard") == 1
    for card in CARDS:
        assert f'id="{card.key}"' in page


def test_every_word_of_a_card_begins_alike() -> None:
    """Formulas start with their symbol, words with a capital letter."""
    said = [word for card in CARDS for word in (card.holds, card.sends, card.waits, card.memory, card.traffic)]
    assert [word for word in said if word[:2].isalpha() and word[0].islower()] == []
    assert [word for word in said if word.startswith("a ")] == []


@pytest.mark.parametrize("how", ["full", "selective"])
def test_the_picture_of_recomputation_shows_how_much_runs_again(how: str) -> None:
    model = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 64}
    drawn = picture(RunSpec.model_validate({"model": model, "parallel": {"recompute": how}}))
    again, once = (sum(rect.width for rect in drawn if rect.phase == phase) for phase in ("recompute", "forward"))
    products, core = 24 * 64**2, 4 * 32 * 64  # FLOPs of a position; the last product is a third of the first
    kept = (products * 2 / 3 + core) if how == "full" else core
    assert again / once == pytest.approx(kept / (products + core), abs=0.01)
