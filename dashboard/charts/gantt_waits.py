"""What waits in a Gantt, taken out of the messages and collectives that it waits in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAITING = "waiting"
"""The trace of what waits for another rank: idle, with a hover of its own."""
LEAST_WAIT = 0.001
"""Of what is shown: shorter waits are not a pixel wide, and stay in the bar that they are of."""


def cut(bars: NDArray[np.void], least_ms: float) -> NDArray[np.void]:
    """Takes the waiting out of messages and collectives (rows of `gantt_bars.BAR`), in place; what was taken out, where
    it lasts `least_ms`."""
    chosen = bars["waited"] >= max(least_ms, np.finfo(float).tiny)
    out = bars[chosen]
    out["start"], out["end"] = out["until"] - out["waited"], out["until"]
    bars["start"][chosen] = bars["until"][chosen]
    return out
