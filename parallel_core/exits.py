"""Which rank of a run is at fault, from the ends of all of them."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from parallel_core.launch import EXIT_PEER, EXIT_STOPPED

KILL_AFTER_S = 0.8
"""A SIGKILL this many seconds after the first death is the fork server's, for a rank that did not end on TERM."""


@dataclass(frozen=True)
class Exit:
    """The end of a rank, in the order of reports; `at` is CLOCK_MONOTONIC in seconds."""

    rank: int
    code: int
    at: float


def culprit(exits: Iterable[Exit]) -> Exit | None:
    """The rank that failed first and by itself; None if all ended well.

    Ranks that only lost a peer, and those that the fork server then ended, are culprits only if there is no other.
    """
    failed = [one for one in exits if one.code not in (0, EXIT_STOPPED)]
    if not failed:
        return None
    begin = failed[0].at

    def by_itself(one: Exit) -> bool:
        ended_by_us = one.code == -signal.SIGTERM or (one.code == -signal.SIGKILL and one.at - begin >= KILL_AFTER_S)
        return one.code != EXIT_PEER and (one is failed[0] or not ended_by_us)

    return next(filter(by_itself, failed), failed[0])
