"""Rules about sharding over replicas (ZeRO, Rajbhandari et al. 2020). Errors name valid values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import Proposal, divisors, refusal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


OWN = ("parallel.zero_backend", "own")


def check_zero(spec: RunSpec) -> None:
    """Raises the error of the first rule that is broken."""
    _check_backend(spec)
    if spec.parallel.zero and spec.parallel.dp == 1:
        more = [degree for degree in divisors(spec.train.global_batch) if degree > 1]
        raise refusal(
            ("parallel.zero", "parallel.dp"),
            f"zero={spec.parallel.zero} shards over data-parallel replicas, and dp=1 leaves nothing to shard over; use",
            Proposal("zero=0", "parallel.zero", [0]),
            *([Proposal("dp={}", "parallel.dp", more, 3)] if more else []),
        )
    if spec.parallel.zero > 2 and spec.parallel.pp > 1:
        raise refusal(
            ("parallel.zero", "parallel.pp"),
            "zero=3 gathers each layer's parameters for every forward and backward of a micro-batch, and a pipeline "
            f"needs many of those, as pp={spec.parallel.pp} does; use",
            Proposal("zero={}", "parallel.zero", [2, 1, 0], 3),
            Proposal("pp={}", "parallel.pp", [1]),
            Proposal("zero={} with zero_backend=own", "parallel.zero", [2, 1, 0], spare=True, also=[OWN]),
        )


def _check_backend(spec: RunSpec) -> None:
    if spec.parallel.zero_backend == "own":
        return
    if spec.parallel.zero < 3:
        raise refusal(
            ("parallel.zero_backend", "parallel.zero"),
            "zero_backend=fully_shard shards parameters, gradients and optimizer state, which is zero=3; got zero="
            f"{spec.parallel.zero}: use",
            Proposal("zero={}", "parallel.zero", [3]),
            Proposal("zero_backend={}", "parallel.zero_backend", ["own"]),
        )
    if spec.model.tied:
        raise refusal(
            ("parallel.zero_backend", "model.tied"),
            "zero_backend=fully_shard keeps a matrix in one layer's group, and with tied=true it is in two; use",
            Proposal("zero_backend={}", "parallel.zero_backend", ["own"]),
            Proposal("tied=false", "model.tied", [False]),
        )
