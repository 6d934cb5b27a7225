"""Separates waits from the messages and collectives that they are part of, for a Gantt chart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WAITING = "waiting"
"""Name of the Plotly trace for waits for another rank: drawn as idle, with its own hover text."""
LEAST_WAIT = 0.001
"""As a part of what is shown: shorter waits would be less than a pixel wide and stay part of their bar."""


def cut(bars: NDArray[np.void], least_ms: float) -> NDArray[np.void]:
    """Takes the waits out of messages and collectives (rows of `gantt_bars.BAR`), in place.

    Returns the waits as BAR rows; those shorter than `least_ms` stay where they are.
    """
    chosen = bars["waited"] >= max(least_ms, np.finfo(float).tiny)
    out = bars[chosen]
    out["start"], out["end"] = out["until"] - out["waited"], out["until"]
    bars["start"][chosen] = bars["until"][chosen]
    return out
