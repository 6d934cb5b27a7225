"""Ranks that share a device, each with passes of its own: what they lose by it beside their turns.

Whoever comes on finds the other's tensors in the caches; what a turn costs the system is paid by both; and a tensor
group waits whenever one of its ranks has its turn while another has none. Each pass counts at the pace that the device
had around it: what is looked for is a few per cent, and within a second cores drift by more.
"""

from __future__ import annotations

from collections.abc import Callable

from parallel_core.profile.layers import LayerBench
from parallel_core.profile.pacer import Pacer
from parallel_core.profile.repeats import expected

_ENOUGH_S, _LEAST, _MOST = 2.0, 3, 16
_PASSES, _COMPANY = 3, 1
"""Passes in a row that are timed, and that ranks at work together do behind them, so that all of those have company."""


def ratio(
    bench: LayerBench,
    pacer: Pacer,
    each: int,
    alone: bool,
    together: Callable[[], None],
    agree: Callable[[int], int],
) -> float | None:
    """How many times longer than `each` turns a pass through all layers takes where so many ranks share a device.

    In turns with passes of those that fill the devices `alone`; None of the others. All ranks call it; `together`
    waits for all of them, `agree` gives all the number of the first one.
    """
    took = max(_pass(bench) for _ in range(_COMPANY + 1))
    repeats = agree(min(_MOST, max(_LEAST, round(_ENOUGH_S / took / (_PASSES + each * (_PASSES + _COMPANY))))))
    plain: list[float] = []
    crowded: list[float] = []
    for _ in range(repeats):
        together()
        if alone:
            plain += _passes(bench, pacer, _PASSES)
        together()
        crowded += _passes(bench, pacer, _PASSES + _COMPANY)[:_PASSES]
    return expected(crowded) / expected(plain) / each if alone else None


def _passes(bench: LayerBench, pacer: Pacer, count: int) -> list[float]:
    """What each of so many took, of the reference work's seconds then."""
    took = []
    pacer.begin()
    for _ in range(count):
        took.append(_pass(bench))
        pacer.behind()
    return [seconds / pace for seconds, pace in zip(took, pacer.paces(count), strict=True)]


def _pass(bench: LayerBench) -> float:
    took = bench.run(split=False)
    return took["forward"][0] + took["backward"][0]
