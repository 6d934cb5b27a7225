"""Rules about stages with different numbers of replicas: what they need and exclude. Errors name valid values."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import plural_text
from parallel_core.outline import outline_of
from parallel_core.rules import MAX_VALUES_NAMED, Proposal, divisors, few, nearest, refusal, rule_error
from parallel_core.rules.pipeline import fewest_micro_batches
from parallel_core.rules.stages import REPLICAS, check_each_stage, dashed_text, in_place_of
from parallel_core.schedule.round_robin import least_micro_batches
from parallel_core.schedule.traits import TRAITS, round_robins

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec, RunSpec


def check_replicas(spec: RunSpec) -> None:
    """Raises the error of the first rule that is broken."""
    if spec.parallel.replicas is None:
        return
    check_each_stage(spec.parallel, REPLICAS)
    for check in (_check_schedule, _check_micro_batches):
        check(spec.parallel, dashed_text(spec.parallel.replicas))
    _check_beside(spec, dashed_text(spec.parallel.replicas))


def check_batch(spec: RunSpec) -> None:
    """Checks that every micro-batch of every replica has the same number of samples."""
    dp, m, batch = spec.parallel.dp, spec.parallel.micro_batches, spec.train.global_batch
    if batch % dp:
        raise refusal(
            ("parallel.dp", "train.global_batch"),
            f"dp={dp} does not divide global_batch={batch}; try",
            Proposal("{}", "parallel.dp", nearest(divisors(batch), dp), MAX_VALUES_NAMED),
            Proposal("global_batch={}", "train.global_batch", [spec.parallel.per_step], spare=True),
        )
    if (batch // dp) % m:
        raise refusal(
            ("parallel.micro_batches", "train.global_batch"),
            f"{m} micro-batches do not divide the {plural_text(batch // dp, 'sample')} that a "
            f"{'replica' if spec.parallel.replicas is None else 'step'} has of global_batch={batch}; try",
            _other_numbers(spec),
            Proposal("global_batch={}", "train.global_batch", [spec.parallel.per_step], spare=True),
        )
    _check_normalised(spec)


def _other_numbers(spec: RunSpec) -> Proposal:
    """Returns the numbers of micro-batches that divide the samples of a replica and are enough for the schedule."""
    split, samples = spec.parallel, spec.train.global_batch // spec.parallel.dp
    enough = [m for m in divisors(samples) if m >= fewest_micro_batches(split)]
    if not enough:
        return Proposal("global_batch={}", "train.global_batch", [split.per_step])
    return Proposal("{}", "parallel.micro_batches", nearest(enough, split.micro_batches), MAX_VALUES_NAMED)


def _check_normalised(spec: RunSpec) -> None:
    """Checks that batch norm has more than one value per channel to compute the variance of, also in the smallest
    feature map."""
    split, batch = spec.parallel, spec.train.global_batch
    if batch // split.micro_batches >= outline_of(spec.model).least_samples:
        return
    fewer = [m for m in divisors(batch) if batch // m > 1]
    advice = f"micro_batches={few(fewer, split.micro_batches)} or " if fewer else ""
    raise rule_error(
        ("parallel.micro_batches", "train.global_batch", "model.kind"),
        f"kind={spec.model.kind} normalises over the samples of a micro-batch, and "
        f"{plural_text(split.micro_batches, 'micro-batch')} of global_batch={batch} "
        f"{'leaves' if split.micro_batches == 1 else 'leave'} one sample, of one pixel in the last layers; try {advice}"
        f"global_batch={2 * split.micro_batches}.",
    )


def advice(replicas: tuple[int, ...], micro_batches: int) -> str:
    """Returns a sentence on the cost of an uneven distribution; '' where all replicas of a stage get equally many
    micro-batches."""
    every, do = lcm(*replicas), "does" if micro_batches == 1 else "do"
    if not micro_batches % every:
        return ""
    return (
        f"{plural_text(micro_batches, 'micro-batch')} {do} not divide evenly over {dashed_text(replicas)} replicas; "
        f"a multiple of {every} keeps all of them busy."
    )


def _check_schedule(split: ParallelSpec, text: str) -> None:
    if not TRAITS[split.schedule].round_robin:
        raise refusal(
            ("parallel.replicas", "parallel.schedule"),
            f"replicas={text} gives micro-batches to replicas in turn, which schedule={split.schedule} does not; use",
            Proposal("schedule={}", "parallel.schedule", round_robins(), MAX_VALUES_NAMED),
            Proposal("leave replicas empty", "parallel.replicas", [None]),
        )


def _check_micro_batches(split: ParallelSpec, text: str) -> None:
    least = least_micro_batches(split.schedule, split.replicas or ())
    if split.micro_batches < least:
        raise rule_error(
            ("parallel.micro_batches", "parallel.replicas"),
            f"schedule={split.schedule} with replicas={text} needs at least {least} micro-batches a step, got "
            f"{split.micro_batches}; use micro_batches={least} or more.",
        )


def _check_beside(spec: RunSpec, text: str) -> None:
    split = spec.parallel
    alike = in_place_of(REPLICAS, [degree for degree in divisors(spec.train.global_batch) if degree > 1] or [2])
    if split.zero:
        raise refusal(
            ("parallel.zero", "parallel.replicas"),
            f"zero={split.zero} cuts a state into equal parts over data-parallel replicas, and replicas={text} gives "
            "each stage its own number; use",
            Proposal("zero={}", "parallel.zero", [0]),
            alike,
        )
    if spec.model.tied:
        raise refusal(
            ("model.tied", "parallel.replicas"),
            f"tied=true pairs each first stage with a last one, and replicas={text} pairs none; use",
            Proposal("tied=false", "model.tied", [False]),
            alike,
        )
    if outline_of(spec.model).batch_norm:
        raise refusal(
            ("model.kind", "parallel.replicas"),
            f"kind={spec.model.kind} normalises over the samples of all replicas, and with replicas={text} stages "
            "would do so over different ones; use another model, or",
            alike,
        )
