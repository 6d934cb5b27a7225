"""Ranks that share a device, each with passes of its own: what they lose by it beside their turns.

Whoever comes on finds the other's tensors in the caches; what a turn costs the system is paid by both; and a tensor
group waits whenever one of its ranks has its turn while another has none. Passes count at the pace that the device had
around them: what is looked for is a few per cent, and within a second cores drift by more. The pace is told while
nobody shares the device: the reference work would be slowed by company, too, and hide what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallel_core.profile.layers import LayerBench
from parallel_core.profile.pace_probe import PaceProbe
from parallel_core.profile.repeats import expected

_ENOUGH_S, _LEAST, _MOST = 2.0, 3, 16
_PASSES, _COMPANY = 3, 1
"""Passes in a row that are timed, and that ranks at work together do behind them, so that all of those have company."""
MEETINGS = 4
"""Of all ranks in a repeat; behind the last repeat there is one more."""


def ratio(
    bench: LayerBench,
    pacer: PaceProbe,
    each: int,
    alone: bool,
    together: Callable[[], None],
    agree: Callable[[int], int],
) -> float | None:
    """How many times longer than `each` turns a pass through all layers takes where so many ranks share a device.

    In turns with passes of those that fill the devices `alone`; None of the others. All ranks call it; `together`
    waits for all of them, `agree` gives all the number of the first one.
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
    """Passes of all ranks at once, at the pace around them; none of a rank that is not `alone`."""
    together()
    if alone:
        pacer.begin()
    together()
    took = _passes(bench, _PASSES + _COMPANY)[:_PASSES]
    together()
    return _at_pace(took, pacer) if alone else []


def _at_pace(took: Sequence[float], pacer: PaceProbe) -> list[float]:
    """Of the reference work's seconds, which are told before and behind all of them."""
    pacer.behind()
    (pace,) = pacer.paces(1)
    return [seconds / pace for seconds in took]


def _passes(bench: LayerBench, count: int) -> list[float]:
    return [_pass(bench) for _ in range(count)]


def _pass(bench: LayerBench) -> float:
    took = bench.run(split=False)
    return took["forward"][0] + took["backward"][0]
