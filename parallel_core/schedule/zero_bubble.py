"""Zero bubble on a line of stages (Qi et al. 2024a, section 2): weight gradients are deferred into the bubbles.

With T_F = T_B = T_W and free communication ZB-H1 keeps p micro-batches in flight (from F to W) on every stage and idles
(p - 1) T_F; ZB-H2 keeps 2p - 1 and has no idle time. A stage then ends its step T_F after the one before it; a barrier
before the optimizer (a global gradient norm) shows that as idle time.

The first stage sends no gradient, so nothing comes between its B and its W: they are one BW, which reuses what it
computed for the input when it computes the weight gradients.
"""

from __future__ import annotations

from itertools import pairwise

from parallel_core.schedule.ir import Kind
from parallel_core.schedule.runs import Pass, Run, limited


def h1(place: int, pp: int, micro_batches: int) -> list[Run]:
    """A place of ZB-H1: 1F1B whose W lags B by s micro-batches on stage s."""
    return _runs(place, pp - place, place, micro_batches)


def h2(place: int, pp: int, micro_batches: int) -> list[Run]:
    """A place of ZB-H2: more forwards fill the warm-up, W lags B by 2s micro-batches."""
    return _runs(place, 2 * (pp - place) - 1, 2 * place, micro_batches)


def _runs(stage: int, ahead: int, behind: int, micro_batches: int) -> list[Run]:
    """F leads B by `ahead` micro-batches, W lags B by `behind`; weight gradients come in micro-batch order."""
    forward, weights = (Kind.F, stage), (Kind.W, stage)
    backward = (Kind.B if behind else Kind.BW, stage)
    first, owed = min(ahead, micro_batches), min(behind, micro_batches)
    runs = [Run(first, (forward,))]
    for begin, end in pairwise(sorted({0, owed, micro_batches - first, micro_batches})):
        passes: list[Pass] = [backward]
        passes += [weights] if behind and begin >= owed else []
        passes += [forward] if begin < micro_batches - first else []
        runs.append(Run(end - begin, tuple(passes)))
    return limited([*runs, Run(owed, (weights,))], micro_batches)
