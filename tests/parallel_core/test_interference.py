"""How much processor time other processes took on a run's devices: the busiest device counts, since its rank delays
all.
"""

from __future__ import annotations

import pytest

from parallel_core.engine.device import open_device
from parallel_core.engine.interference import Interference

NAN = float("nan")


@pytest.mark.parametrize(("ranks", "share"), [([0.0, 0.8, 0.0, 0.0], 0.8), ([0.1, NAN], None), ([0.0, 0.0], 0.0)])
def test_the_share_is_that_of_the_device_used_most(
    ranks: list[float], share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over four devices would call a run undisturbed whose steps all waited for one of them."""
    every = Interference(open_device("cpu"), None, len(ranks))
    monkeypatch.setattr(every, "_exchange", lambda mine: [[rank] for rank in ranks])
    assert every.share() == share
