"""Weight versions of a pipeline that never runs empty: which one each operation uses, and when the next one is made.

Versions are named by the number of micro-batches whose gradients they hold. Stages update on their own, as soon as a
*round* of gradients is there: one micro-batch of each replica (PipeDream: Narayanan et al. 2019, section 3.3) or, under
`2bw`, a whole step (Narayanan et al. 2021a, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1).

* `none`: forward and backward each use the weights of their moment, so a gradient mixes two versions.
* `stash`: both use the newest version at the forward; the stage keeps what is still needed. With `vertical`, all stages
  use the version that the first stage had when the micro-batch entered: the newest that every stage has.
* `2bw`: the version before the newest of the step, so two are enough. W(t + 1) = W(t) - lr g(W(t - 1)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from parallel_core.schedule.ir import Kind, Op, Program, Schedule


def stamp(schedule: Schedule, per_step: int) -> Schedule:
    """Writes its weight version into every compute operation; a step has `per_step` micro-batches.

    Every rank holds one stage. A schedule that flushes is left as it is.
    """
    if schedule.sync == "flush":
        return schedule
    entered = _entered(schedule) if schedule.vertical else {}
    programs = tuple(tuple(_stamped(schedule, program, per_step, entered)) for program in schedule.programs)
    return replace(schedule, programs=programs)


def update(schedule: Schedule, per_step: int) -> Schedule:
    """Adds to a stamped schedule, behind the last backward of every round: DROP of versions that nobody needs any more,
    ALLREDUCE where there are replicas, STASH of the present one if it is still needed, OPT_STEP.

    A last round that is short has an update like any other: all replicas take part, whether they add to it or not.
    """
    return replace(schedule, programs=tuple(tuple(_updated(schedule, p, per_step)) for p in schedule.programs))


def round_size(schedule: Schedule, stage: int, per_step: int) -> int:
    """Micro-batches that one update of `stage` holds more than the one before."""
    return per_step if schedule.sync == "2bw" else len(schedule.placement[stage])


def _entered(schedule: Schedule) -> dict[int, int]:
    """Micro-batch -> the newest version that every stage has when the first stage forwards it."""
    every = lcm(*map(len, schedule.placement))
    return {
        op.micro_batch: version // every * every
        for rank in schedule.placement[0]
        for op, version in _present(schedule, schedule.programs[rank], len(schedule.placement[0]))
        if op.kind is Kind.F
    }


def _present(schedule: Schedule, program: Program, size: int) -> Iterator[tuple[Op, int]]:
    """Every operation with the newest version at its start; updates are made every `size` micro-batches."""
    left = Counter(op.micro_batch // size for op in program if op.kind is Kind.BW)
    version = 0
    for op in program:
        yield op, version
        if op.kind is Kind.BW:
            turn = op.micro_batch // size
            left[turn] -= 1
            if not left[turn]:
                version = min((turn + 1) * size, schedule.micro_batches)


def _stamped(schedule: Schedule, program: Program, per_step: int, entered: dict[int, int]) -> Iterator[Op]:
    size, used = round_size(schedule, program[0].stage, per_step), dict[int, int]()
    for op, version in _present(schedule, program, size):
        if schedule.sync == "2bw":
            version = max(0, op.micro_batch // per_step - 1) * per_step
        elif schedule.vertical:
            version = entered[op.micro_batch]
        elif schedule.sync == "stash":
            version = used.setdefault(op.micro_batch, version)
        yield replace(op, version=version)


def _updated(schedule: Schedule, program: Program, per_step: int) -> Iterator[Op]:
    stage, replica = program[0].stage, program[0].replica
    size = round_size(schedule, stage, per_step)
    last_use = {op.version: i for i, op in enumerate(program)}
    kept: set[int] = set()
    version = 0
    rounds = _rounds(program, size, schedule.micro_batches)
    for i, op in enumerate(program):
        yield op
        for turn in rounds.get(i, ()):
            made = min((turn + 1) * size, schedule.micro_batches)
            at = Op(Kind.OPT_STEP, stage, op.micro_batch, replica, made)
            for old in sorted(old for old in kept if last_use[old] <= i):
                kept.remove(old)
                yield replace(at, kind=Kind.DROP, version=old)
            if len(schedule.placement[stage]) > 1:
                yield replace(at, kind=Kind.ALLREDUCE)
            if last_use.get(version, -1) > i:
                kept.add(version)
                yield replace(at, kind=Kind.STASH, version=version)
            yield at
            version = made


def _rounds(program: Program, size: int, micro_batches: int) -> dict[int, list[int]]:
    """Position of an operation -> the rounds that are updated behind it: behind the last backward of this replica in
    the round and, where it has none (a short last round), behind everything."""
    behind = {op.micro_batch // size: i for i, op in enumerate(program) if op.kind is Kind.BW}
    out: dict[int, list[int]] = {}
    for turn in range(-(-micro_batches // size)):
        out.setdefault(behind.get(turn, len(program) - 1), []).append(turn)
    return out
