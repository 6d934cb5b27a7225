"""Which micro-batch is going through a rank's layers, for the layers that must know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Sample(NamedTuple):
    """One micro-batch: what enters the model and what the loss compares with, (samples, ...) each."""

    inputs: Tensor
    targets: Tensor


NOTHING = Sample(torch.empty(0), torch.empty(0))
"""What passes through layers on a rank that reads no samples."""


@dataclass
class MicroBatchContext:
    """Set by the stage before layers run; layers that are `Follower`s read it."""

    seed: int
    step: int = 0
    first: int = 0
    """Number of the micro-batch's first sample within the step."""
    again: bool = False
    """Whether this micro-batch has been here before: a recomputation, which may change no state."""
    sample: Sample = NOTHING

    def at(self, step: int, first: int, sample: Sample, again: bool) -> None:
        """Set all but the seed."""
        self.step, self.first, self.sample, self.again = step, first, sample, again


class Follower(nn.Module):
    """A layer whose outcome depends on which micro-batch is passing through."""

    passing: MicroBatchContext


def follow(unit: nn.Module, passing: MicroBatchContext) -> None:
    """Let every Follower in `unit` read `passing`."""
    for module in unit.modules():
        if isinstance(module, Follower):
            module.passing = passing
