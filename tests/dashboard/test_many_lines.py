"""Of many lines in one chart, a few are coloured and the others grey; each can be marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dashboard.charts import loss, svg
from dashboard.charts.loss import Curve
from dashboard.charts.many_lines import HUES, LEADERS
from dashboard.runs.models import Run
from dashboard.studies.overview import figures
from dashboard.studies.selectors import overview
from tests.dashboard import factory


def curves(count: int, family: Sequence[str] = ("single",), baseline: int = -1) -> list[Curve]:
    steps = np.arange(3, dtype=np.int32)
    values = [np.array([3.0, 2.0, 1.0]) + i for i in range(count)]
    return [
        Curve(
            f"run {i}",
            steps,
            steps.astype(np.float64),
            one,
            3,
            family=family[i % len(family)],
            run=i + 1,
            baseline=i == baseline,
        )
        for i, one in enumerate(values)
    ]


def test_of_too_many_lines_the_first_and_the_baseline_have_colours_and_the_others_are_grey_behind_them() -> None:
    made = loss.chart(curves(50, ("single", "dp"), baseline=20), "t", "s", first="fastest")
    named = [line for line in made.figure["data"] if line.get("showlegend", True)]
    assert [line["name"] for line in named] == ["run 20, baseline", *(f"run {i}" for i in reversed(range(LEADERS)))]
    *colours, baseline = [line["line"]["color"] for line in reversed(named)]
    assert sorted(colours) == sorted(f"var(--{hue})" for hue in HUES) and baseline == "var(--ink)"
    assert len(made.figure["data"]) == 50 and made.figure["data"][-len(named) :] == named, "over the others"
    assert [line["legendrank"] for line in reversed(named)] == list(range(1, len(named) + 1))
    assert "coloured: the 5 fastest and the baseline; grey: the other 44" in made.subtitle
    assert made.height == loss.chart(curves(6, ("single", "dp")), "t", "s").height, "the legend has six names"
    assert [row[0] for row in made.rows] == [f"run {i}" for i in range(50)]
    assert "run 7" not in svg.drawn(made.figure) and "run 20, baseline" in svg.drawn(made.figure)


def test_of_too_many_lines_a_coloured_one_has_the_hue_of_its_strategy_as_in_other_charts() -> None:
    """PP-GPipe was purple, the hue of combinations, between charts in which it is green."""
    made = loss.chart(curves(13, ("dp", "tp", "single", "pp", "single"), baseline=2), "t", "s")
    named = {line["name"]: line["line"]["color"] for line in made.figure["data"] if line.get("showlegend", True)}
    assert [named[f"run {i}"] for i in (0, 1, 3)] == ["var(--line-dp)", "var(--line-tp)", "var(--line-pp)"]
    assert named["run 4"] not in {"var(--line-dp)", "var(--line-tp)", "var(--line-pp)", "var(--line-single)"}
    twice = loss.chart(curves(13, ("dp", "dp", "tp")), "t", "s").figure["data"]
    hues = [line["line"]["color"] for line in twice if line.get("showlegend", True)]
    assert len(set(hues)) == LEADERS, "a second one of a strategy has another"


@pytest.mark.parametrize(("count", "families", "grey"), [(5, 1, 0), (6, 1, 1), (12, 2, 0), (13, 2, 8)])
def test_lines_are_grey_only_where_hues_and_patterns_do_not_tell_them_apart(
    count: int, families: int, grey: int
) -> None:
    made = loss.chart(curves(count, ("single", "dp")[:families]), "t", "s")
    assert sum(line.get("showlegend") is False for line in made.figure["data"]) == grey
    assert "the baseline" not in made.subtitle, "none of these is one"


def test_every_line_says_which_run_it_is_of_so_that_it_can_be_marked() -> None:
    marked = [line["meta"] for line in loss.chart(curves(2), "t", "s").figure["data"]]
    assert marked == [{"run": 1, "label": "run 0"}, {"run": 2, "label": "run 1"}]


@pytest.mark.usefixtures("redis_url")  # announcements need a broker
def test_the_points_drawn_of_many_runs_do_not_grow_with_their_number(alice: Any) -> None:
    (row,) = overview([factory.queued(alice)]).rows
    rows = [replace(row, run=Run(pk=i), entry=replace(row.entry, baseline=i == 20)) for i in range(100)]
    assert set(figures._buckets(rows[:12]).values()) == {figures.LOSS_BUCKETS}
    many = figures._buckets(rows)
    assert [pk for pk, buckets in many.items() if buckets == figures.LOSS_BUCKETS] == [*range(LEADERS), 20]
    assert sum(many.values()) < loss.MAX_LINES * figures.LOSS_BUCKETS * 1.2


def test_what_is_counted_has_no_zeros_behind_it_in_the_numbers_of_its_curve() -> None:
    (one,) = curves(1)
    assert loss.chart([one], "t", "s").rows == [["run 0", "3", "3", "1", "1"]]
    assert loss.chart([replace(one, value=one.value / 2)], "t", "s").rows[0][2:] == ["1.50000", "0.500000", "0.500000"]
