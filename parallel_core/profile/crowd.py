"""Ranks that share a device, each with passes of its own: what they lose by it beside their turns.

Whoever comes on finds the other's tensors in the caches; what a turn costs the system is paid by both; and a tensor
group waits whenever one of its ranks has its turn while another has none.
"""

from __future__ import annotations

from collections.abc import Callable

from parallel_core.profile.layers import LayerBench
from parallel_core.profile.repeats import expected

_ENOUGH_S, _LEAST, _MOST = 2.0, 3, 8
_PASSES, _COMPANY = 5, 2
"""Passes in a row that are timed, and that ranks at work together do behind them, so that all of those have company."""


def ratio(
    bench: LayerBench, each: int, alone: bool, together: Callable[[], None], agree: Callable[[int], int]
) -> float | None:
    """How many times longer than `each` turns a pass through all layers takes where so many ranks share a device.

    In turns with passes of those that fill the devices `alone`; None of the others. All ranks call it; `together`
    waits for all of them, `agree` gives all the number of the first one.
    """
    for _ in range(_COMPANY):
        took = _pass(bench)
    repeats = agree(min(_MOST, max(_LEAST, round(_ENOUGH_S / took / (_PASSES + each * (_PASSES + _COMPANY))))))
    plain: list[float] = []
    crowded: list[float] = []
    for _ in range(repeats):
        together()
        if alone:
            plain += [_pass(bench) for _ in range(_PASSES)]
        together()
        crowded += [_pass(bench) for _ in range(_PASSES + _COMPANY)][:_PASSES]
    return expected(crowded) / expected(plain) / each if alone else None


def _pass(bench: LayerBench) -> float:
    took = bench.run(split=False)
    return took["forward"][0] + took["backward"][0]
