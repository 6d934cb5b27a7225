"""A cost table and its curves: interpolation, which values are refused, and its file."""

from __future__ import annotations

import json

import pytest

from parallel_core.profile.curves import Curve
from parallel_core.profile.table import CostTable, CostTableError
from parallel_core.spec import ModelSpec
from tests.parallel_core.tables import table

MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)


def test_curves_go_through_their_points_and_straight_on() -> None:
    line = Curve(sizes=(10, 20, 40), seconds=(1.0, 2.0, 6.0))
    assert [line.at(size) for size in (0, 10, 15, 30, 50)] == [1.0, 1.0, 1.5, 4.0, 8.0]
    alpha, beta = Curve(sizes=(0, 1e3, 1e6), seconds=(1e-4, 1.01e-4, 1.1e-3)).line
    assert (alpha, beta) == (pytest.approx(1e-4, rel=0.02), pytest.approx(1e-9, rel=0.02))


def test_a_burst_that_passes_at_once_hides_no_rate() -> None:
    """A link of 50 MB/s that passes bursts of 128 KiB at once, like a traffic shaper: small messages must not set the
    rate.
    """
    sizes = tuple(1024.0 * 4**i for i in range(8))
    seconds = tuple(1e-4 + max(0.0, size - 131072) / 50e6 for size in sizes)
    alpha, beta = Curve(sizes=sizes, seconds=seconds).line
    assert (alpha, 1 / beta) == (pytest.approx(1e-4, rel=0.5), pytest.approx(50e6, rel=1e-6))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"precision": "fp3"}, "precision"),
        ({"sizes": []}, "sizes: Sizes must list the model's 10 layers"),
        ({"links": [{"what": "send", "ranks": 2, "time": {"sizes": [1, 1], "seconds": [1, 1]}}]}, "Sizes must rise"),
        ({"links": [{"what": "send", "ranks": 2, "time": {"sizes": [1], "seconds": [-1]}}]}, "at least 0"),
        ({"spells": [[1.0, 1.0], [1.0]]}, "spells: Every spell needs a number for each device"),
        ({"spells": [[0.0, 1.0]]}, "spells.0.0: Must be more than 0"),
    ],
)
def test_a_wrong_table_is_told_by_field(change: dict[str, object], told: str) -> None:
    wrong = {**table(MODEL).dump(), **change}
    with pytest.raises(CostTableError, match=told):
        CostTable.parse(json.dumps(wrong))


def test_a_table_survives_its_file() -> None:
    known = table(MODEL)
    assert CostTable.parse(json.dumps(known.dump())) == known
