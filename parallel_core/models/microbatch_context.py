"""Tells layers that need it which micro-batch is passing through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Sample(NamedTuple):
    """One micro-batch: inputs of the model and targets of the loss, [samples, ...] each."""

    inputs: Tensor
    targets: Tensor


NOTHING = Sample(torch.empty(0), torch.empty(0))
"""Stands for the samples on a rank that reads none."""


@dataclass
class MicroBatchContext:
    """The micro-batch that is passing: set by the stage before layers run, read by layers that are `Follower`s."""

    seed: int
    step: int = 0
    first: int = 0
    """Number of the micro-batch's first sample within the step."""
    again: bool = False
    """Whether this is a recomputation, which must not change any state (running statistics)."""
    sample: Sample = NOTHING
    held_out: bool = False
    """Whether it is evaluated, not trained on: no dropout, no change of state, and the statistics gathered so far."""

    def at(self, step: int, first: int, sample: Sample, again: bool) -> None:
        """Sets everything but the seed."""
        self.step, self.first, self.sample, self.again = step, first, sample, again


class Follower(nn.Module):
    """A layer whose result depends on which micro-batch is passing through it."""

    passing: MicroBatchContext


def follow(unit: nn.Module, passing: MicroBatchContext) -> None:
    """Makes every Follower in `unit` read `passing`."""
    for module in unit.modules():
        if isinstance(module, Follower):
            module.passing = passing
