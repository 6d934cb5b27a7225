"""Zero bubble on a line of stages (Qi et al. 2023, section 2): weight gradients are deferred into the bubbles.

With T_F = T_B = T_W and free communication ZB-H1 keeps p micro-batches in flight (from F to W) on every stage and idles
(p - 1) T_F; ZB-H2 keeps 2p - 1 and has no idle time. A stage then ends its step T_F after the one before it; a barrier
before the optimizer (a global gradient norm) shows that as idle time.

The first stage sends no gradient, so nothing comes between its B and its W: they are one BW, which reuses what it
computed for the input when it computes the weight gradients.
"""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op


def h1(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place of ZB-H1: 1F1B whose W lags B by s micro-batches on stage s."""
    return [_program(stage, pp - stage, stage, micro_batches) for stage in range(pp)]


def h2(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place of ZB-H2: more forwards fill the warm-up, W lags B by 2s micro-batches."""
    return [_program(stage, 2 * (pp - stage) - 1, 2 * stage, micro_batches) for stage in range(pp)]


def _program(stage: int, ahead: int, behind: int, micro_batches: int) -> list[Op]:
    """F leads B by `ahead` micro-batches, W lags B by `behind`; weight gradients come in micro-batch order."""
    ops = [Op(Kind.F, stage, i) for i in range(min(ahead, micro_batches))]
    for i in range(micro_batches):
        ops.append(Op(Kind.B if behind else Kind.BW, stage, i))
        if behind and i >= behind:
            ops.append(Op(Kind.W, stage, i - behind))
        if i + ahead < micro_batches:
            ops.append(Op(Kind.F, stage, i + ahead))
    return ops + [Op(Kind.W, stage, i) for i in range(max(0, micro_batches - behind), micro_batches)]
