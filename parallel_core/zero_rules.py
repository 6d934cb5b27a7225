"""What sharding over replicas (ZeRO, Rajbhandari et al. 2020) needs. Errors name what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import divisors, few, rule

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_zero(spec: RunSpec) -> None:
    """Raises the error of the first rule that is broken."""
    if spec.parallel.zero and spec.parallel.dp == 1:
        more = [degree for degree in divisors(spec.train.global_batch) if degree > 1]
        raise rule(
            ("parallel.zero", "parallel.dp"),
            f"zero={spec.parallel.zero} shards over data-parallel replicas, and data=1 leaves nothing to shard over; "
            f"use zero=0{f' or data={few(more[:3], 2)}' if more else ''}.",
        )
    if spec.parallel.zero > 2 and spec.parallel.pp > 1:
        raise rule(
            ("parallel.zero", "parallel.pp"),
            "zero=3 gathers each layer's parameters for every forward and backward of a micro-batch, and a pipeline "
            f"needs many of those; with pipeline={spec.parallel.pp} use zero=2 or less, or use pipeline=1.",
        )
