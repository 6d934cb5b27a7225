"""Sends the input gradient, which another stage waits for, before the weight gradients are computed."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Kind, Op, Schedule


def hand_back(schedule: Schedule) -> Schedule:
    """Every BW but the first stage's as B directly followed by W: the result of B is sent between them.

    The order of a rank's work stays the same. While the pipeline fills with gradients and while it drains, each stage
    waits for the next one, so a step ends (p - 1) T_W earlier: (p - 1) (T_F + T_B) are idle, not (p - 1) (T_F + T_B +
    T_W). Zero bubble goes further and puts other work between B and W (Qi et al. 2024a, section 2.1).
    """
    return replace(schedule, programs=tuple(tuple(_halves(program)) for program in schedule.programs))


def _halves(program: tuple[Op, ...]) -> list[Op]:
    out = []
    for op in program:
        halved = op.kind is Kind.BW and op.stage > 0
        out += [replace(op, kind=Kind.B), replace(op, kind=Kind.W)] if halved else [op]
    return out
