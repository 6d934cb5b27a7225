"""How many evaluations of held-out samples a run makes, and about how long each takes."""

from __future__ import annotations

FORWARD_SHARE = 1 / 3
"""Of a step's work, the forward's: the backward takes about twice as much (Narayanan et al. 2021b, section 5.1)."""


def evaluations(every: int, steps: int, done: int = 0) -> int:
    """Returns how many evaluations follow after `done` of `steps` steps: every `every` steps (0: never) and after the
    last."""
    return -(-steps // every) - done // every if every and done < steps else 0


def evaluation_steps(samples: int, batch: int) -> float:
    """Returns about how many times as long as a step of `batch` samples an evaluation of `samples` takes."""
    return FORWARD_SHARE * samples / batch
