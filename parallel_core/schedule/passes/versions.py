"""Weight versions of a pipeline without flushes: which one each operation uses, and when the next one is made.

Versions are identified by the number of micro-batches whose gradients they hold. Stages update independently, as soon
as a *round* of gradients is complete: one micro-batch of each replica (PipeDream: Narayanan et al. 2019, section 3.3)
or, under `2bw`, a whole step (Narayanan et al. 2021a, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1).
Rounds start anew with each step, and its last one is short if the replicas do not divide the micro-batches, so all
replicas hold the same weights at the end of a step.

* `none`: forward and backward each use the current weights, so a gradient mixes two versions.
* `stash`: both use the newest version at the forward; the stage keeps what is still needed. With `vertical`, all stages
  use the newest version that every stage has when the micro-batch enters: with equal numbers of replicas that of the
  first stage, else a multiple of their least common multiple (within the step).
* `2bw`: the version before the newest of the step, so two are enough. W(t + 1) = W(t) - lr g(W(t - 1)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from parallel_core.schedule.ir import Kind, Op, Program, Schedule


def stamp(schedule: Schedule) -> Schedule:
    """Writes its weight version into every compute operation.

    Every rank holds one stage. A schedule with a flush is returned unchanged.
    """
    if schedule.sync == "flush":
        return schedule
    entered = _entered(schedule) if schedule.vertical else {}
    return replace(schedule, programs=tuple(tuple(_stamped(schedule, p, entered)) for p in schedule.programs))


def update(schedule: Schedule) -> Schedule:
    """Adds to a stamped schedule, after the last backward of every round: DROP of versions no longer needed, ALLREDUCE
    if there are replicas, STASH of the current one if it is still needed, OPT_STEP.

    A short last round has an update like any other: all replicas take part, whether they contribute or not.
    """
    return replace(schedule, programs=tuple(tuple(_updated(schedule, p)) for p in schedule.programs))


def versions_of(schedule: Schedule, stage: int) -> list[int]:
    """The versions that `stage` makes, in order: one at the end of each round."""
    per_step = schedule.per_step or schedule.micro_batches
    size = per_step if schedule.sync == "2bw" else len(schedule.placement[stage])
    return [
        first + min(own, per_step)
        for first in range(0, schedule.micro_batches, per_step)
        for own in range(size, per_step + size, size)
    ]


def _entered(schedule: Schedule) -> dict[int, int]:
    """Micro-batch -> the newest version that every stage has at its forward on the first stage."""
    every = lcm(*map(len, schedule.placement))
    found = {}
    for rank in schedule.placement[0]:
        for op, version in _present(schedule, schedule.programs[rank]):
            if op.kind is Kind.F:
                first, own = schedule.in_step(version)
                found[op.micro_batch] = first + own // every * every
    return found


def _present(schedule: Schedule, program: Program) -> Iterator[tuple[Op, int]]:
    """Every operation with the newest version at its start."""
    made, version = _rounds(schedule, program), 0
    for i, op in enumerate(program):
        yield op, version
        version = made.get(i, [version])[-1]


def _stamped(schedule: Schedule, program: Program, entered: dict[int, int]) -> Iterator[Op]:
    used = dict[int, int]()
    for op, version in _present(schedule, program):
        if schedule.sync == "2bw":
            version = max(0, schedule.in_step(op.micro_batch)[0] - schedule.per_step)
        elif schedule.vertical:
            version = entered[op.micro_batch]
        elif schedule.sync == "stash":
            version = used.setdefault(op.micro_batch, version)
        yield replace(op, version=version)


def _updated(schedule: Schedule, program: Program) -> Iterator[Op]:
    stage, replica = program[0].stage, program[0].replica
    last_use = {op.version: i for i, op in enumerate(program)}
    kept: set[int] = set()
    version = 0
    rounds = _rounds(schedule, program)
    for i, op in enumerate(program):
        yield op
        for made in rounds.get(i, ()):
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


def _rounds(schedule: Schedule, program: Program) -> dict[int, list[int]]:
    """Position of an operation -> the versions made after it: after the last backward of this replica in the round or,
    if it has none (a short last round), after its previous one."""
    backwards = [(op.micro_batch, i) for i, op in enumerate(program) if op.kind is Kind.BW]
    out: dict[int, list[int]] = {}
    done = 0
    for version in versions_of(schedule, program[0].stage):
        while done < len(backwards) and backwards[done][0] < version:
            done += 1
        out.setdefault(backwards[done - 1][1], []).append(version)
    return out
