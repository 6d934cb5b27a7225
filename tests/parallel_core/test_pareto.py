"""The Pareto front of two measures."""

from __future__ import annotations

import random

from parallel_core.analysis.pareto import pareto_front

Point = tuple[float, float, int]


def both(point: Point) -> tuple[float, float]:
    return point[:2]


def test_the_front_is_what_no_other_is_as_good_as() -> None:
    """Against the definition, on points with many ties."""
    chance = random.Random(7)
    for count in (0, 1, 2, 30):
        points: list[Point] = [(chance.randrange(6), chance.randrange(6), i) for i in range(count)]

        def beaten(one: Point, points: list[Point] = points) -> bool:
            others = (p for p in points if p[0] <= one[0] and p[1] <= one[1] and p[2] != one[2])
            return any(both(p) != both(one) or p[2] < one[2] for p in others)

        assert pareto_front(points, both) == sorted(point for point in points if not beaten(point))


def test_more_of_one_measure_is_better_where_its_sign_is_turned() -> None:
    ways = {"slow": (3.0, 9.0), "quick": (1.0, 4.0), "worse": (2.0, 3.0)}
    assert pareto_front(ways, lambda name: (ways[name][0], -ways[name][1])) == ["quick", "slow"]
