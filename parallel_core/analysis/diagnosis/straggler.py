"""Finds one rank that computes slower than the others for the same FLOPs.

Threshold: 1.3 times the median of the other ranks that do the same work (replicas of a stage, its tensor group). If
only other stages can be compared it is 1.6 times, because layers of different kinds reach different FLOP rates (blocks
and the output layer differ by 1.2 to 1.4 times here). The time lost must also be 5 % of the step, and the rank the
slowest in three of four traced steps; there must be at least two: what varies between steps is noise. A rank that loses
the same time with every operation, long or short, is not slow: that is `tiny_kernels`. The work of a rank is its FLOPs,
and on a CPU what its operations cost beside them: small operations are mostly launches, of which FLOPs say nothing.
Stages of uneven work are only compared where the rank that computes longest has no more of it than most: else that is
`unbalanced_stages`.

The reference work, if ranks did it, shows whether the device is slow or the rank's own work: a device that takes 1.15
times as long for it is slow itself (the times on one device vary less than that: docs/engine.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_core.analysis.breakdown import Account
from parallel_core.analysis.diagnosis import tiny_kernels
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.diagnosis.unbalanced_stages import HEAVIER
from parallel_core.analysis.quantities import ns_text, plural_text, ratio_text
from parallel_core.plan.strategy import step_flops
from parallel_core.simulate.constant_costs import MOST, constant_costs

SAME_WORK, OTHER_WORK, MATTERS, OFTEN = 1.3, 1.6, 0.05, 0.75
SLOW_DEVICE = 1.15
LEAST = 2


def check(case: Case, least: int = LEAST, whole: bool = True) -> Finding | None:
    """The finding, or None; needs at least `least` traced steps. `whole`: each span of computing is a whole forward or
    backward, whose length tells a rank that launches slowly from a slow one."""
    if case.layout.world == 1 or len(case.traced) < least or (whole and tiny_kernels.alone(case)):
        return None
    found = _slowest(case)
    if found is None:
        return None
    rank, others, peers, factor, lost = found
    of_device, called = case.slower_device(rank, others), case.called(rank)
    compared = "the ranks that do the same work" if peers else "the other stages, for the work of each"
    return Finding(
        "straggler",
        f"{ratio_text(factor)} as long as the others: rank {called} is a straggler.",
        f"Its compute takes {ns_text(lost)} of a step more than on {compared}, in "
        f"{plural_text(len(case.traced), 'traced step')}." + _reference(of_device),
        _change(called, of_device, unseen=case.others is None),
        effect_ns=_effect(case, found),
        tab="accounts",
        rank=called,
    )


def _effect(case: Case, found: _Slowest) -> int:
    """What a step would be shorter by: in a pipeline less than the rank loses, where it or others wait anyway."""
    saved = case.saved_by_pace(found.rank, found.factor) if case.spec.parallel.pp > 1 else None
    return found.lost if saved is None else min(found.lost, saved)


class _Slowest(NamedTuple):
    """The rank whose compute takes longest a FLOP: `factor` times as long as that of `others`, which is `lost` ns of a
    step. `peers`: whether these do the same work."""

    rank: int
    others: list[int]
    peers: bool
    factor: float
    lost: int


def _slowest(case: Case) -> _Slowest | None:
    """None where it cannot be compared, or is not far enough behind, too seldom the last, or of no consequence."""
    ranks, work = range(case.layout.world), _work(case)
    pace = np.array([[_busy(step[rank]) / work[rank] for rank in ranks] for step in case.accounts])
    slow = int(np.median(pace, axis=0).argmax())
    peers = _peers(case, slow)
    if not peers and _uneven(case, work, slow):
        return None
    others = peers or [rank for rank in ranks if rank != slow]
    usual = np.median(pace[:, others], axis=1)
    if not usual.all():
        return None  # the other ranks have no compute to compare with
    factor = float(np.median(pace[:, slow] / usual))
    often = float(np.mean(pace.argmax(axis=1) == slow))
    lost = round(float(np.median([_busy(step[slow]) for step in case.accounts])) * (1 - 1 / factor)) if factor else 0
    if factor < (SAME_WORK if peers else OTHER_WORK) or often < OFTEN or lost < MATTERS * case.step_ns:
        return None
    return _Slowest(slow, others, bool(peers), factor, lost)


def _uneven(case: Case, work: list[float], slow: int) -> bool:
    """Whether ranks have uneven work, which explains why all wait for another rank than `slow`, or why it is slow."""
    mean = sum(work) / len(work)
    busy = case.of_rank(lambda _, account: _busy(account))
    longest = max(busy, key=busy.__getitem__)
    return max(work) > HEAVIER * mean and (longest != slow or work[slow] >= HEAVIER * mean)


def _reference(of_device: float | None) -> str:
    """A sentence on what the reference work shows about the slow rank's device; '' if it was not done."""
    if of_device is None:
        return ""
    took = f" The reference work, the same on every rank, took {ratio_text(of_device)} as long there:"
    return f"{took} the device is slow." if of_device >= SLOW_DEVICE else f"{took} it is not the device."


def _change(slow: int, of_device: float | None, unseen: bool) -> str:
    """`unseen`: what other processes used of the device is not known, as of a run that ended early."""
    if of_device is None or of_device >= SLOW_DEVICE:
        return (
            f"Look at the device of rank {slow}: its clock, its heat, what else runs there; or place the run elsewhere."
        )
    others = "; and at other processes there, whose share was not measured" if unseen else ""
    return f"Look at what rank {slow} does beside its layers: hooks, logging, other threads of its process{others}."


def _busy(account: Account) -> int:
    return account.parts.compute + account.parts.recompute


def _work(case: Case) -> list[float]:
    """About how long each rank's work takes: its part of its stages' layers, times its replica's micro-batches. Stages
    may differ in both. What operations cost whatever their size counts as it is, up to MOST of the whole."""
    each, layout, constant = step_flops(case.spec), case.layout, constant_costs(case.spec)
    by_stage = [sum(each[unit] for unit in units) for units in layout.stage_units]
    flops, beside = np.empty(layout.world), np.empty(layout.world)
    for rank, (place, replica, _) in enumerate(map(layout.coords, range(layout.world))):
        own, many = layout.stages_of(place), len(layout.micro_batches_of(place, replica))
        flops[rank] = max(1.0, many * sum(by_stage[stage] for stage in own) / layout.widths[place])
        beside[rank] = many * sum(constant[stage].forward + constant[stage].backward for stage in own)
    busy = sum(case.of_rank(lambda _, account: _busy(account)).values())
    stays = min(float(beside.sum()), MOST * busy)
    found = flops if not stays else (busy - stays) * flops / flops.sum() + stays * beside / beside.sum()
    return [float(one) for one in found]


def _peers(case: Case, rank: int) -> list[int]:
    """The other ranks of the same place."""
    place = case.layout.coords(rank).place
    return [r for r in range(case.layout.world) if r != rank and case.layout.coords(r).place == place]
