"""Names and numbers in charts are placed where they can be read."""

from __future__ import annotations

import numpy as np

from dashboard.charts.gantt_bars import BAR
from dashboard.charts.labels import DOT, legible, placed, room
from dashboard.charts.labels import _box as box
from dashboard.charts.labels import _met as met
from parallel_core.schedule.ir import Kind


def test_names_that_would_cover_each_other_take_other_sides() -> None:
    points = [(100.0, 100.0, "DP"), (112.0, 98.0, "PP-1F1B"), (108.0, 112.0, "TP"), (400.0, 20.0, "Single")]
    sides = placed(points, 500, 200)
    assert sides[3] == "top right"
    boxes = [box(*point, side) for point, side in zip(points, sides, strict=True)]
    for i, one in enumerate(boxes):
        assert not met(one, np.array(boxes[i + 1 :]).reshape(-1, 4))
        for x, y, _ in points[:i] + points[i + 1 :]:
            assert not (one.left < x + DOT and x - DOT < one.right and one.top < y + DOT and y - DOT < one.bottom)


def test_a_name_stays_inside_and_a_crowd_still_gets_names() -> None:
    assert placed([(495.0, 100.0, "Single")], 500, 200) == ["top left"]
    crowd = placed([(480.0, 198.0, "Single x4"), (480.0, 198.0, "Naive")] * 8, 500, 200)
    assert set(crowd) <= {"top left", "middle left"}, "no name leaves the chart, however crowded it is"


def test_of_names_that_lie_over_each_other_one_is_read() -> None:
    points = [(50.0, 50.0, "PP-1F1B"), (52.0, 51.0, "TP"), (50.0, 150.0, "DP")]
    assert legible(points, ["top right"] * 3) == ["PP-1F1B", "", "DP"]
    assert legible(points, ["top right", "bottom left", "top right"]) == ["PP-1F1B", "TP", "DP"]


def test_a_name_that_lies_over_anothers_point_is_left_out() -> None:
    points = [(50.0, 50.0, "Naive layer-wise"), (90.0, 40.0, "TP"), (90.0, 120.0, "DP")]
    assert legible(points, ["top right"] * 3) == ["", "TP", "DP"]
    assert legible(points, ["bottom right", "top right", "top right"]) == ["Naive layer-wise", "TP", "DP"]


def _bars(*rows: tuple[Kind, float, float, float]) -> np.ndarray:
    out = np.zeros(len(rows), BAR)
    for i, (kind, y, start, end) in enumerate(rows):
        out[i]["kind"], out[i]["y"], out[i]["start"], out[i]["end"] = kind, y, start, end
    return out


def test_a_number_stands_in_the_longest_part_of_its_bar_that_nothing_lies_on() -> None:
    bars = _bars(
        (Kind.BW, 0, 0, 10),  # recomputed over its middle and at its start
        (Kind.BW, 0, 20, 30),  # recomputed but for slivers
        (Kind.BW, 1, 0, 10),  # another rank: nothing lies on it
        (Kind.BW, 0, 40, 41),  # as short as that, but nothing lies on it
    )
    over = _bars(
        (Kind.R, 0, 4, 6),
        (Kind.R, 0, 0, 1),
        (Kind.TP_COLLECTIVE, 0, 4.5, 7.5),  # ends later than what it begins in
        (Kind.R, 0, 20.2, 25),
        (Kind.R, 0, 25.5, 29.9),
    )
    found = room(bars, over, 1.5)
    assert found[[0, 2, 3]].tolist() == [[1, 4], [0, 10], [40, 41]]
    assert np.isnan(found[1]).all()
    assert room(bars, over[:0], 1.5).tolist() == [[0, 10], [20, 30], [0, 10], [40, 41]]
