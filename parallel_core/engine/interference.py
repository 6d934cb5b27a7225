"""Measures how much other processes used this run's devices in the timed steps, i.e. whether to trust the timing.

What they use of a GPU is not measured: there it only counts the processes that are on it as the steps begin and end.
"""

from __future__ import annotations

import os
from math import isnan, nan

from parallel_core.engine.device import Device
from parallel_core.engine.exchange import Exchange
from parallel_core.observe.cores import cores
from parallel_core.observe.gpu_processes import others_in
from parallel_core.observe.host import CpuOthers


class Interference:
    """The measurement of one rank. All ranks call `start` before the timed steps, `share` and `processes` after them;
    these are collectives. Ranks that do not wait for each other after them call `own_share` and `own_processes`
    instead."""

    def __init__(self, device: Device, exchange: Exchange, node: int = 0) -> None:
        """`node` = number of this rank's host, as cores of different hosts have the same numbers."""
        self._device, self._exchange, self._node = device, exchange, node
        self._others: CpuOthers | None = None
        self._together = 1.0
        self._ours: frozenset[int] = frozenset()
        self._before: int | None = None

    def start(self) -> None:
        """Begins to measure. A collective: every rank calls it, before its first timed step."""
        listed = self._device.processes()  # before the ranks meet, as it takes time
        core, device, node = self._device.core(), self._device.number(), float(self._node)
        every = self._exchange.rows([float(os.getpid()), node, _coded(core), _coded(device)])
        pids = [int(pid) for pid, at, theirs, _ in every if (at, theirs) == (node, _coded(core))]
        self._ours = frozenset(int(pid) for pid, at, *_ in every if at == node)
        self._before = others_in(listed, self._ours)
        self._others = None if core is None else CpuOthers(core, lambda: pids)
        alike = sum((at, theirs) == (node, _coded(device)) for _, at, _, theirs in every)
        self._together = max(1.0, alike / (len(cores()) if device is None else 1))  # unbound ranks share all cores

    def share(self) -> float | None:
        """The share, 0 .. 1, of the device that others used most, whose rank delays all ranks. None if unknown (a rank
        with a GPU of its own, or not bound to one core)."""
        mine = self.own_share()
        shares = [share for (share,) in self._exchange.rows([nan if mine is None else mine])]
        return None if any(map(isnan, shares)) else max(shares)

    def own_share(self) -> float | None:
        """The share, 0 .. 1, of this rank's own device since `start`; no collective. None if unknown."""
        if self._device.sharing > 1:
            return 1 - 1 / self._device.sharing  # other ranks of this run on the device disturb it like other processes
        mine = nan if self._others is None else self._others.share()
        return None if isnan(mine) else mine

    def of_devices(self, mine: float) -> tuple[float, int]:
        """(sum over the run's devices, their number), from each rank's measurement of its own device, after `start`;
        ranks that share a device count as one, with their mean. A collective."""
        total, devices = self._exchange.totals([mine / self._together, 1 / self._together])
        return total, round(devices)

    def processes(self) -> int | None:
        """The most processes other than the ranks of this run that were on one of its GPUs, before or after the timed
        steps. None if none was found, and it is not known of all (never on a CPU, whose `share` is measured)."""
        mine = self.own_processes()
        found = [count for (count,) in self._exchange.rows([nan if mine is None else mine])]
        most = max((count for count in found if not isnan(count)), default=0)
        return None if not most and any(map(isnan, found)) else int(most)

    def own_processes(self) -> int | None:
        """As `processes`, for this rank's own GPU; no collective."""
        after = others_in(self._device.processes(), self._ours)
        known = [count for count in (self._before, after) if count is not None]
        return max(known) if len(known) == 2 or any(known) else None


def _coded(number: int | None) -> float:
    return -1.0 if number is None else float(number)
