"""The choice among traced steps: links to the neighbours of the shown one, keeping the page's other parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.template import Context, Template
from django.test import RequestFactory
from ninja.errors import HttpError

from dashboard.api.steps import require_traced
from dashboard.runs.models import Run, SpanChunk
from dashboard.runs.tracing.traced import StepChoice, step_choice
from tests.dashboard import factory


def page(choice: StepChoice, step: int | None, more: str = "", query: str = "") -> str:
    text = Template("{% load step_choice %}{% step_choice choice step " + more + " %}")
    return text.render(Context({"choice": choice, "step": step, "request": RequestFactory().get(f"/{query}")}))


def links(steps: list[int], step: int | None, more: str = "", query: str = "") -> dict[str, str]:
    """rel -> address of each link, with its ampersands unescaped."""
    text = page(StepChoice.among(steps, step), step, more, query)
    return {rel: address.replace("&amp;", "&") for rel, address in re.findall(r'rel="(\w+)" href="([^"]+)"', text)}


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (None, {"prev": "?step=20"}),
        (30, {"prev": "?step=20"}),
        (20, {"prev": "?step=10", "next": "?step=30"}),
        (10, {"next": "?step=20"}),
    ],
)
def test_neighbours_are_one_click_away(step: int | None, found: dict[str, str]) -> None:
    assert links([10, 20, 30], step) == found


def test_another_step_keeps_the_tab_and_the_zoom_but_no_span_of_the_old_step() -> None:
    query = "?tab=operators&a=1&step=5&lit=0:1:2&from=1&to=2"
    assert links([0, 5], 5, query=query) == {"prev": "?tab=operators&a=1&step=0&from=1&to=2"}
    text = page(StepChoice.among([0, 5], 5), 5, query=query)
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))
    assert hidden == {"tab": "operators", "a": "1", "from": "1", "to": "2"}
    assert text.count('data-keeps="from to axis smoothing scale"') == 2, "also where a script changed them since"


def test_one_step_is_no_choice() -> None:
    assert links([7], None, "newest=True") == {} == links([], None)


@pytest.fixture
def long_run(alice: Any) -> Run:
    """A run with 1 000 traced steps: 0, 10, ... 9 990."""
    run = factory.queued(alice)
    attempt = factory.start(run)
    rows = [SpanChunk(attempt=attempt, rank=0, step=10 * i, count=1, total=1, data=b"") for i in range(1000)]
    SpanChunk.objects.bulk_create(rows)
    return run


@pytest.mark.django_db
@pytest.mark.parametrize("asked", [None, 0, 3000, 9_900, 9_990, 3005])
def test_a_run_offers_what_its_whole_list_would(long_run: Run, asked: int | None) -> None:
    assert step_choice(long_run, asked) == StepChoice.among(range(0, 10_000, 10), asked)


@pytest.mark.django_db
def test_a_long_run_offers_the_newest_steps_and_those_beside_the_shown_one(long_run: Run) -> None:
    choice = step_choice(long_run, 3000)
    assert (choice.before, choice.shown, choice.behind, choice.total) == (2990, 3000, 3010, 1000)
    assert choice.steps == [*range(2500, 3510, 10), *range(9000, 10_000, 10)]
    text = page(choice, 3000)
    assert 'type="number" id="step" name="step"' in text and "201 of 1000 listed" in text
    assert text.count("<option") == 201 and "<select" not in text


@pytest.mark.django_db
def test_a_step_that_was_not_traced_is_named_with_its_neighbours(long_run: Run) -> None:
    choice = step_choice(long_run, 3005)
    assert choice.shown is None and "Step 3\N{NO-BREAK SPACE}005 was not traced." in page(choice, None)
    assert (choice.before, choice.behind) == (3000, 3010)


@pytest.mark.django_db
def test_a_run_without_traced_steps_offers_none(alice: Any) -> None:
    assert step_choice(factory.queued(alice), None) == StepChoice([], 0)


def test_steps_that_are_deleted_while_they_are_read_are_none_that_was_traced() -> None:
    with pytest.raises(HttpError, match=r"Step 5 was not traced: the nearest that was is step 7\."):
        require_traced(StepChoice([3, 7], 2, asked=5), "none")
