"""Hints and error messages of fields, which a screen reader says only where the field refers to them."""

from __future__ import annotations

import re

import pytest
from django.template.loader import render_to_string
from django.test import Client

from dashboard.charts import errors
from parallel_core.plan.cluster import accuracy

NAME = re.compile(r'<(?:input|select|textarea)\b[^>]*?\bname="([^"]*)"')
ID = re.compile(r'<p class="(?:hint|error)" id="((?:help|error)-[^"]+)"')
DESCRIBED = re.compile(r'\baria-describedby="([^"]*)"')


@pytest.mark.parametrize(
    "address",
    [
        "/planner/",
        "/planner/crossover/",
        "/planner/judge/",
        "/partition/graph/",
        "/accounts/tokens/",
        "/accounts/password/",
        "/studies/new/",
        "/runs/new/",
    ],
)
def test_every_field_refers_to_its_hint_and_its_error(member: Client, address: str) -> None:
    text = member.get(address).content.decode()
    names, told = set(NAME.findall(text)), {one for ids in DESCRIBED.findall(text) for one in ids.split()}
    wanted = {one for one in ID.findall(text) if one.split("-", 1)[1] in names}
    assert len(wanted) >= 3 and wanted <= told
    assert all(f'id="{one}"' in text for one in told), "each refers to what is there"


def test_the_numbers_of_a_chart_are_called_as_their_chart() -> None:
    """On a page with many charts, all tables had one name."""
    chart = errors.chart("times", "All rows", accuracy.step_times())
    fixed = render_to_string("parts/chart.html", {"chart": chart})
    later = render_to_string("parts/chart_lazy.html", {"key": "gantt", "src": "/", "height": 1, "wait": "Loading"})
    for text, key in ((fixed, "times"), (later, "gantt")):
        assert f'<figcaption id="chart-{key}-title"' in text
        assert f'role="region" aria-labelledby="chart-{key}-title"' in text


def test_crossover_says_the_bounds_of_its_fields_before_they_are_exceeded(member: Client) -> None:
    text = member.get("/planner/crossover/").content.decode()
    bounds = dict(re.findall(r'<input type="number" name="(\w+)"[^>]*?\bmax="([^"]+)"', text))
    assert set(bounds) == {
        "devices",
        "hidden",
        "layers",
        "heads",
        "seq",
        "batch",
        "micro_batches",
        "flops",
        "bandwidth",
        "alpha",
    }
    for field, most in bounds.items():
        asked = {"batch": "1048576", field: most}
        assert member.get("/planner/crossover/", asked).context["valid"], field
        errors = member.get("/planner/crossover/", {**asked, field: f"{float(most) * 2:.0f}"}).context["form"].errors
        assert list(errors) == [field]
