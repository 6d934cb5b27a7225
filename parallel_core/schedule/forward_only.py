"""Forward passes alone, of the micro-batches that a step would have: what an evaluation of held-out samples runs.

On every rank, operations are in the order of (micro-batch + stage, micro-batch). A forward is one diagonal after the
one it needs, so this order of all ranks together suits every placement, and all of a pipeline's stages work at once.
"""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op, Program, Schedule
from parallel_core.schedule.passes.communicate import communicate


def forward_only(step: Schedule, micro_batches: int) -> Schedule:
    """Returns the forwards, with their messages, of the first `micro_batches` of a compute-only step; its replicas are
    those of `step`."""
    replicas = max(map(len, step.placement))
    programs = tuple(_forwards(program, micro_batches, replicas) for program in step.programs)
    return communicate(Schedule("forward-only", step.stages, micro_batches, step.placement, programs))


def _forwards(program: Program, micro_batches: int, replicas: int) -> Program:
    found = [part for op in program for part in op.parts() if part.kind is Kind.F and part.micro_batch < micro_batches]
    made = [Op(Kind.F, op.stage, op.micro_batch, op.replica) for op in found]
    return tuple(sorted(made, key=lambda op: (op.micro_batch // replicas + op.stage, op.micro_batch)))
