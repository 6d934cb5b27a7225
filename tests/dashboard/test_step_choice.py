"""The choice among traced steps: links to the neighbours of the shown one, keeping the open tab."""

from __future__ import annotations

import re

import pytest
from django.template import Context, Template


def links(steps: list[int], step: int | None, more: str = "") -> dict[str, str]:
    """rel -> address of each link, with its ampersands unescaped."""
    text = Template("{% load step_choice %}{% step_choice steps step " + more + " %}").render(
        Context({"steps": steps, "step": step})
    )
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


def test_the_open_tab_stays_open() -> None:
    assert links([0, 5], 5, 'tab="memory"') == {"prev": "?tab=memory&step=0"}


def test_one_step_is_no_choice() -> None:
    assert links([7], None, "newest=True") == {} == links([], None)
