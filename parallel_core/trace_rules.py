"""Rules about which steps and ranks torch.profiler may record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import Way, few, refusal, rule_error

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_profile(spec: RunSpec) -> None:
    """Raises the error of a rule where a step or rank that is to be profiled does not exist."""
    steps, world = spec.train.steps, spec.parallel.world
    late = next((step for step in spec.trace.profile_steps if step >= steps), None)
    if late is not None:
        raise refusal(
            ("trace.profile_steps", "train.steps"),
            f"there is no step {late}: the last is {steps - 1}; use an earlier one, or",
            Way("steps={} or more", "train.steps", [late + 1]),
        )
    beyond = next((rank for rank in spec.trace.profile_ranks or () if rank >= world), None)
    if beyond is not None:
        raise rule_error(
            ("trace.profile_ranks",), f"there is no rank {beyond} among {world}; try {few(range(world), beyond)}."
        )
