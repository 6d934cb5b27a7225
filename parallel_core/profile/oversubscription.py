"""Measures what ranks lose by sharing a device, in addition to waiting for their turns.

After a switch the caches hold the other rank's tensors; both pay for the switches; and a tensor-parallel group waits
whenever one of its ranks runs while another does not. Passes are measured relative to the device's pace before and
after them, since the effect is a few per cent and cores drift by more within a second. The pace is measured while the
device is not shared: sharing would slow the reference work, too, and hide the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallel_core.profile.layers import LayerBench
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.repeats import expected

_ENOUGH_S, _LEAST, _MOST = 2.0, 3, 16
_PASSES, _COMPANY = 3, 1
"""Consecutive timed passes, and further untimed ones after those of ranks that run at the same time, so that no timed
pass runs alone."""
MEETINGS = 4
"""Barriers of all ranks in each repeat; after the last repeat there is one more."""


def ratio(
    bench: LayerBench,
    pacer: PaceProbe,
    each: int,
    alone: bool,
    together: Callable[[], None],
    agree: Callable[[int], int],
) -> float | None:
    """Pass time with `each` ranks per device, divided by `each` x the exclusive pass time; None on ranks that are not
    `alone`.

    Exclusive passes, of one rank per device (`alone`), alternate with passes of all ranks at once. All ranks call it;
    `together` is a barrier, `agree` returns the first rank's number on all of them.
    """
    longest = max(_pass(bench) for _ in range(_COMPANY + 1))
    repeats = agree(min(_MOST, max(_LEAST, round(_ENOUGH_S / longest / (_PASSES + each * (_PASSES + _COMPANY))))))
    plain: list[float] = []
    crowded: list[float] = []
    for _ in range(repeats):
        together()
        if alone:
            pacer.begin()
            plain += _at_pace(_passes(bench, _PASSES), pacer)
        crowded += _crowded(bench, pacer, alone, together)
    together()
    return expected(crowded) / expected(plain) / each if alone else None


def _crowded(bench: LayerBench, pacer: PaceProbe, alone: bool, together: Callable[[], None]) -> list[float]:
    """Runs passes of all ranks at once; returns their times relative to the pace, [] on ranks that are not `alone`."""
    together()
    if alone:
        pacer.begin()
    together()
    took = _passes(bench, _PASSES + _COMPANY)[:_PASSES]
    together()
    return _at_pace(took, pacer) if alone else []


def _at_pace(took: Sequence[float], pacer: PaceProbe) -> list[float]:
    """Returns the times in units of the reference work's seconds, which are measured before and after all of them."""
    pacer.measure()
    (pace,) = pacer.paces(1)
    return [seconds / pace for seconds in took]


def _passes(bench: LayerBench, count: int) -> list[float]:
    return [_pass(bench) for _ in range(count)]


def _pass(bench: LayerBench) -> float:
    took = bench.run(split=False)
    return took["forward"][0] + took["backward"][0]
