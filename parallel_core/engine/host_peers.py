"""Whether the other ranks of a host are there: who waits in shared memory is told by nobody that they have ended.

A pidfd (man 2 pidfd_open) is readable from the moment its process ends, however it does, whoever its parent is, and
never stands for another process. Where there are none, launcher and watchdog find a dead rank, as they do anyway.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping
from contextlib import suppress


class Peers:
    """Processes of other ranks: global rank -> pid."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._ranks: dict[int, int] = {}
        self._poll = select.poll()
        self._gone: list[int] = []
        for rank, pid in pids.items():
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.append(rank)
            except (OSError, AttributeError):  # forbidden, or not to be had
                continue
            else:
                self._ranks[file] = rank
                self._poll.register(file, select.POLLIN)
        weakref.finalize(self, _close, tuple(self._ranks))

    def look(self) -> None:
        """Raises ConnectionResetError where one of them has ended."""
        for rank in (*self._gone, *(self._ranks[file] for file, _ in self._poll.poll(0))):
            raise ConnectionResetError(f"connection closed by peer: rank {rank} of this host has ended")


def _close(files: tuple[int, ...]) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)


NOBODY = Peers({})
