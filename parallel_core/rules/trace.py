"""Rules about which steps and ranks torch.profiler may record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import Proposal, few, refusal
from parallel_core.rules.stages import ranks_text

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_profile(spec: RunSpec) -> None:
    """Raises the error of a rule where a step or rank that is to be profiled does not exist."""
    steps, world = spec.train.steps, spec.parallel.world
    late = next((step for step in spec.trace.profile_steps if step >= steps), None)
    if late is not None:
        earlier = _at_most(spec.trace.profile_steps, steps)
        raise refusal(
            ("trace.profile_steps", "train.steps"),
            f"profile_steps={late} comes after the last of steps={steps}, which is {steps - 1}; use",
            Proposal(f"profile_steps={steps - 1} or less", "trace.profile_steps", [earlier]),
            Proposal("steps={} or more", "train.steps", [max(spec.trace.profile_steps) + 1]),
        )
    beyond = next((rank for rank in spec.trace.profile_ranks or () if rank >= world), None)
    if beyond is not None:
        near = few(range(world), beyond)
        raise refusal(
            ("trace.profile_ranks", "parallel.dp", "parallel.tp", "parallel.pp"),
            f"profile_ranks={beyond} is no rank: {ranks_text(spec.parallel)} has {world}; use",
            Proposal(f"profile_ranks={near}", "trace.profile_ranks", [_at_most(spec.trace.profile_ranks or (), world)]),
            Proposal("leave profile_ranks empty", "trace.profile_ranks", [None]),
        )


def _at_most(chosen: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns `chosen` with the last of `count` for each that is beyond it."""
    return tuple(sorted({min(one, count - 1) for one in chosen}))
