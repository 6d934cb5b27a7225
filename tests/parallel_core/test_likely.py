"""The range beside a prediction: it holds eight of ten runs, by earlier ones or by what was measured elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_core.simulate.likely import ENOUGH, MEASURED, SHARE, RunKind, by_default, by_scores, kind_of, scores
from parallel_core.spec import RunSpec


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        ({"micro_batches": 2}, RunKind.ALONE),
        ({"dp": 2, "zero": 2}, RunKind.APART),
        ({"tp": 2}, RunKind.APART),
        ({"pp": 2, "micro_batches": 2}, RunKind.APART),
        ({"dp": 4}, RunKind.SHARED),
        ({"pp": 2, "widths": (2, 1), "micro_batches": 2}, RunKind.SHARED),
    ],
)
def test_kinds_of_runs_on_two_devices(split: dict[str, Any], kind: RunKind) -> None:
    spec = RunSpec.model_validate({"parallel": split, "train": {"global_batch": 16}})
    assert kind_of(spec.parallel, 2) is kind


def test_eight_of_ten_of_the_next_runs_are_in_the_range_of_earlier_ones() -> None:
    """Whatever their errors are: here all were predicted too slow, and some much."""
    draw, count, turns = np.random.default_rng(1), 0, 4_000
    for _ in range(turns):
        *earlier, following = 0.7 * draw.lognormal(0, 0.1, 13) * draw.choice([1.0, 1.4], 13)
        low, high = by_scores(RunKind.APART, scores((RunKind.APART, ratio) for ratio in earlier)) or (0.0, 0.0)
        count += low <= following <= high
    assert count / turns == pytest.approx(SHARE, abs=0.02)


def test_fewer_than_nine_runs_bound_no_range() -> None:
    ratios = [0.9 + 0.02 * i for i in range(ENOUGH)]
    assert by_scores(RunKind.ALONE, scores((RunKind.ALONE, ratio) for ratio in ratios[:-1])) is None
    found = by_scores(RunKind.ALONE, scores((RunKind.ALONE, ratio) for ratio in ratios))
    assert found == pytest.approx((ratios[0], ratios[-1]))


def test_errors_of_other_kinds_count_by_how_far_these_are_usually_off() -> None:
    one, other = MEASURED[RunKind.ALONE], MEASURED[RunKind.SHARED]
    ratios = [one.ratio(score) for score in np.linspace(-1, 1, 9)]
    found = by_scores(RunKind.SHARED, scores((RunKind.ALONE, ratio) for ratio in ratios))
    assert found == pytest.approx((other.ratio(-1), other.ratio(1)))


def test_a_host_whose_devices_drift_has_a_wider_range() -> None:
    none, steady, drifting = (by_default(RunKind.APART, drift) for drift in (None, (0.99, 1.01), (0.7, 1.3)))
    middle, beside = MEASURED[RunKind.APART]
    assert np.log(steady) == pytest.approx((middle - beside, middle + beside), abs=0.001)
    assert drifting[0] < none[0] < steady[0] < steady[1] < none[1] < drifting[1]
    assert drifting[0] < 0.7 * np.exp(middle) and 1.3 * np.exp(middle) < drifting[1]
