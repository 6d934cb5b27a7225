"""Detects that other ranks of the host have ended: unlike a closed socket, shared memory does not show it to waiting
ranks.

A pidfd (man 2 pidfd_open) becomes readable when its process ends, however it ends and whatever its parent is, and never
refers to another process. Where pidfds are not available, only launcher and watchdog detect a dead rank, as they always
do.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping
from contextlib import suppress


class Peers:
    """The processes of other ranks. `pids`: global rank -> pid."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._ranks: dict[int, int] = {}
        self._poll = select.poll()
        self._gone: list[int] = []
        for rank, pid in pids.items():
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.append(rank)
            except (OSError, AttributeError):  # forbidden, or not supported here
                continue
            else:
                self._ranks[file] = rank
                self._poll.register(file, select.POLLIN)
        weakref.finalize(self, _close, tuple(self._ranks))

    def look(self) -> None:
        """Raises ConnectionResetError where any of them has ended."""
        for rank in (*self._gone, *(self._ranks[file] for file, _ in self._poll.poll(0))):
            raise ConnectionResetError(f"connection closed by peer: rank {rank} of this host has ended")


def _close(files: tuple[int, ...]) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)


NO_PEERS = Peers({})
