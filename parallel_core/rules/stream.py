"""Rules about what can be combined with a schedule that never flushes, and about clipping. Errors name valid values.

Rules about the pipeline of such a schedule itself are in `rules.pipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import Proposal, refusal
from parallel_core.schedule import places
from parallel_core.schedule.traits import TRAITS, flushes

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

FLUSHING = Proposal("schedule={}", "parallel.schedule", ["1f1b"])
UNTIED = Proposal("tied=false", "model.tied", [False])
UNSHARDED = Proposal("zero={}", "parallel.zero", [0])
GLOBAL_CLIP = Proposal("clip={}", "train.clip", ["global"])


def check_stream(spec: RunSpec) -> None:
    """Raises the error of the first rule that is broken."""
    if flushes(spec.parallel.schedule):
        _check_stage_clip(spec)
        return
    for check in (_check_clip, _check_shared):
        check(spec)


def _check_stage_clip(spec: RunSpec) -> None:
    if spec.train.clip != "stage" or spec.train.clip_norm is None:
        return
    if spec.parallel.zero:
        raise refusal(
            ("train.clip", "parallel.zero"),
            f"clip=stage needs a stage's whole gradients on each replica, and zero={spec.parallel.zero} shards them; "
            "use",
            GLOBAL_CLIP,
            UNSHARDED,
        )
    ends = places(spec.parallel)
    if spec.model.tied and ends[0] != ends[-1]:
        raise refusal(
            ("train.clip", "model.tied", "parallel.pp"),
            f"clip=stage multiplies each stage's gradients by a factor of its own, and tied=true has one matrix on the "
            f"first and the last of pp={spec.parallel.pp}, which would drift apart; use",
            GLOBAL_CLIP,
            UNTIED,
            Proposal("schedule={}, which has both on one rank", "parallel.schedule", _turning()),
        )


def _turning() -> list[str]:
    """Schedules that place the first and the last stage on one rank."""
    return [name for name, traits in TRAITS.items() if traits.shape == "v"]


def _check_clip(spec: RunSpec) -> None:
    if spec.train.clip_norm is not None and spec.train.clip == "global":
        raise refusal(
            ("train.clip", "train.clip_norm", "parallel.schedule"),
            f"schedule={spec.parallel.schedule} updates each stage on its own, so there is no moment at which the norm "
            f"exists that clip=global holds to clip_norm={spec.train.clip_norm:g}; use",
            Proposal("clip={}", "train.clip", ["stage"]),
            FLUSHING,
            Proposal("leave clip_norm empty", "train.clip_norm", [None]),
        )


def _check_shared(spec: RunSpec) -> None:
    name = spec.parallel.schedule
    if spec.model.tied:
        raise refusal(
            ("model.tied", "parallel.schedule"),
            f"tied=true shares one matrix between the first and the last stage, which schedule={name} updates at "
            "different times; use",
            UNTIED,
            FLUSHING,
        )
    if spec.parallel.zero:
        raise refusal(
            ("parallel.zero", "parallel.schedule"),
            f"zero={spec.parallel.zero} gathers parameters after each update while schedule={name} still uses older "
            "versions; use",
            UNSHARDED,
            FLUSHING,
        )
