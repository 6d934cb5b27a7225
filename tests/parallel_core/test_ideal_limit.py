"""How fast a run could be with any number of devices, and what it reaches with those that it has."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.plan.strategy import ideal_speedup
from parallel_core.simulate.ideal_limit import ideal_limit
from tests.parallel_core.test_replay import spec


@pytest.mark.parametrize(("split", "limit"), [
    ({"pp": 8}, 2),
    ({"pp": 8, "dp": 2}, 4),
    ({"pp": 8, "schedule": "naive"}, 1),
    ({"pp": 8, "dp": 2, "schedule": "naive"}, 2),
    ({"pp": 8, "schedule": "naive", "early_gradients": True}, None),
    ({"pp": 2, "tp": 2}, None),  # 2.67x
    ({"pp": 8, "schedule": "zb-h1"}, None),  # 2.53x
    ({"pp": 8, "early_gradients": True}, None),
    ({"pp": 8, "schedule": "1f1b-stash"}, None),
])  # fmt: skip
def test_micro_batches_limit_the_speedup_where_one_device_at_a_time_works_on_each(
    split: dict[str, Any], limit: int | None
) -> None:
    made = spec(micro_batches=2, clip="stage", **split)
    assert ideal_limit(made) == limit
    assert limit is None or ideal_speedup(made) <= limit
