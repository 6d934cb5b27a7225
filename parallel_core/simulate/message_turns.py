"""How long the messages of a measured step took, each from when its way was free: two ranks' messages take turns.

Links differ: of a pipeline over two hosts one is slow, the others are not. So each pair of neighbours counts apart.

A message that is sent while the one before it is under way comes later by what that one still takes, as far as their
times show: where a link has a long latency, but any bandwidth, they come as soon after one another as they are sent.

One step has messages of one size over a link, which do not say how much of their time is latency. But no link is taken
to carry less than SLOWEST: what messages take beyond their bytes at that rate is latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import ends, starts
from parallel_core.analysis.waits import Causes, Rows, usual_latency

Times = NDArray[np.float64]
Links = NDArray[np.int64]

SLOWEST, WITHIN = 12.5e6 / 1e9, 500e6 / 1e9
"""Bytes per nanosecond that every link is taken to carry, and every one within a host: 100 Mbit/s; 500 MB/s, a quarter
of what gloo carries between two cores. Of a message of 32 KiB that took 30 ms, 27 ms or more are latency then, so that
one of half the size takes 29, not 15."""


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
    size: Times
    """Its bytes; 0 where they are not known, as in some imported traces."""


class Carrying(NamedTuple):
    """Of the messages of a step, in ns: the median `alone` from a SEND until its tensor has arrived, with its way free;
    `turn`: of that, how long it keeps the next message from going. `size`: bytes, 0 where they are not known."""

    alone: float = 0.0
    turn: float = 0.0
    size: float = 0.0

    def latency(self, took: float, within: bool) -> float:
        """Of `took`, `alone` or `turn`, what it takes at least however small its messages; `within` a host or not."""
        return max(0.0, took - self.size / (WITHIN if within else SLOWEST)) if self.size else 0.0


UNKNOWN = Carrying()
"""Of a step without messages."""


def turns(receives: NDArray[np.void], sent: Causes, usual: Times) -> Turns:
    """Follows the messages from each sender in the order in which they were sent. `usual`: of each receive, what
    messages over its link usually take (`usual_by_link`)."""
    begun, over = starts(receives), ends(receives)
    count = len(receives)
    size = receives["bytes"].astype(np.float64)
    found = Turns(np.zeros(count), np.zeros(count), np.zeros(count, bool), np.zeros(count, bool), size)
    free: dict[int, float] = {}
    for i in np.argsort(sent.at, kind="stable").tolist():
        at, sender = float(sent.at[i]), int(sent.ranks[i])
        begins = max(at, min(free.get(sender, at), float(over[i])))
        took = min(max(over[i] - begins, 0.0), float(usual[i]))
        found.arrival[i], found.alone[i], found.queued[i] = begins + took, took, begins > at
        found.awaited[i] = begun[i] <= begins
        free[sender] = begins + took
    return found


def usual_by_link(rows: Rows, sent: Mapping[int, Causes], links: Mapping[int, Links]) -> dict[int, float]:
    """`waits.usual_latency` of each link alone; of all together where no receive over it was waiting already. `links`:
    for each rank the number of the link of each of its receives."""
    every, found = usual_latency(rows, sent), {}
    for link in np.unique(np.concatenate([np.empty(0, np.int64), *links.values()])).tolist():
        there = {rank: Causes(one.at, np.where(links[rank] == link, one.ranks, -1)) for rank, one in sent.items()}
        found[link] = usual_latency(rows, there) or every
    return found


def carried_by_link(every: Iterable[tuple[Turns, Links]]) -> dict[int, Carrying]:
    """`carrying` of each link; `every`: of each rank, its receives and the numbers of their links."""
    parts = list(every)
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *(links for _, links in parts)])).tolist()
    return {
        link: carrying(Turns(*(column[links == link] for column in own)) for own, links in parts) for link in numbers
    }


def carrying(every: Iterable[Turns]) -> Carrying:
    """Those of all receives of a step. No turn is longer than the time between two messages that met, of which a lower
    quartile is taken, as the second may have been sent late. Messages that never met are taken to keep each other for
    as long as the fastest took, as where bandwidth is what a link lacks: the rest is mostly waiting for a core."""
    parts = [own for own in every if len(own.alone)]
    if not parts:
        return UNKNOWN
    _, took, queued, awaited, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    free = took[~queued]  # the first message of all is not queued
    met = took[queued & awaited] if (queued & awaited).any() else took[queued]
    fastest = float(free.min())
    turn = min(fastest, float(np.quantile(met, 0.25))) if len(met) else fastest
    return Carrying(float(np.median(free)), turn, float(np.median(size)))
