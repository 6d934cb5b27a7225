"""How long the messages of a measured step took, each from when its way was free: two ranks' messages take turns.

A message that is sent while the one before it is under way comes later by what that one still takes, as far as their
times show: where a link has a long latency, but any bandwidth, they come as soon after one another as they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import ends, starts
from parallel_core.analysis.waits import Causes

Times = NDArray[np.float64]


class Turns(NamedTuple):
    """Of the receives of a rank, in their order, in ns."""

    arrival: Times
    """When the message had come, as far as its receive shows: no message is taken to need longer than `usual`."""
    alone: Times
    """What it took once its way was free."""
    queued: NDArray[np.bool_]
    """Whether the message before it was still under way when it was sent."""
    awaited: NDArray[np.bool_]
    """Whether its receiver had nothing else to do by the time that its way was free."""


class Carrying(NamedTuple):
    """Of the messages of a step, in ns: the median `alone` from a SEND until its tensor has arrived, with its way free;
    `turn`: of that, how long it keeps the next message from going."""

    alone: float = 0.0
    turn: float = 0.0


UNKNOWN = Carrying()
"""Of a step without messages."""


def turns(receives: NDArray[np.void], sent: Causes, usual: float) -> Turns:
    """Follows the messages from each sender in the order in which they were sent. `usual`: `waits.usual_latency`."""
    begun, over = starts(receives), ends(receives)
    count = len(receives)
    found = Turns(np.zeros(count), np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))
    free: dict[int, float] = {}
    for i in np.argsort(sent.at, kind="stable").tolist():
        at, sender = float(sent.at[i]), int(sent.ranks[i])
        begins = max(at, min(free.get(sender, at), float(over[i])))
        took = min(max(over[i] - begins, 0.0), usual)
        found.arrival[i], found.alone[i], found.queued[i] = begins + took, took, begins > at
        found.awaited[i] = begun[i] <= begins
        free[sender] = begins + took
    return found


def carrying(every: Iterable[Turns]) -> Carrying:
    """Those of all receives of a step. No turn is longer than the time between two messages that met, of which a lower
    quartile is taken, as the second may have been sent late. Messages that never met are taken to keep each other for
    as long as the fastest took, as where bandwidth is what a link lacks: the rest is mostly waiting for a core."""
    parts = [own for own in every if len(own.alone)]
    if not parts:
        return UNKNOWN
    _, took, queued, awaited = (np.concatenate(column) for column in zip(*parts, strict=True))
    free = took[~queued]  # the first message of all is not queued
    met = took[queued & awaited] if (queued & awaited).any() else took[queued]
    fastest = float(free.min())
    return Carrying(float(np.median(free)), min(fastest, float(np.quantile(met, 0.25))) if len(met) else fastest)
