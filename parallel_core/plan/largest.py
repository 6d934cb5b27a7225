"""The layer count to run next in a search for the largest model that fits: bisection from the memory model's
prediction.

Each decision depends only on the counts tried so far, so an interrupted search continues where it was. An exact
prediction costs two runs: its count fits, the next one does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallel_core.limits import MAX_LAYERS
from parallel_core.plan.capacity import largest_layers, least_layers
from parallel_core.spec import RunSpec

MARGIN = 0.005
"""Share of the limit that a prediction leaves free: the memory model's mean error (`bench memory`), so that the
predicted count fits."""


@dataclass(frozen=True)
class Search:
    """Search for the largest layer count in `least` .. `most` that fits. `tried`: {layers: whether it fitted}."""

    guess: int
    tried: Mapping[int, bool] = field(default_factory=dict)
    least: int = 1
    most: int = MAX_LAYERS

    @property
    def largest(self) -> int | None:
        """The largest count that fitted; None while none did."""
        return max((layers for layers, fits in self.tried.items() if fits), default=None)

    @property
    def refused(self) -> int | None:
        """The smallest count above `largest` that did not fit; None while every one did."""
        floor = self.largest or 0
        return min((layers for layers, fits in self.tried.items() if not fits and layers > floor), default=None)

    @property
    def following(self) -> int | None:
        """The count to run next; None once the largest is known, or nothing fits.

        1. First the guess, within the bounds.
        2. While all fitted: upwards by 1, 2, 4 ...; while none did: downwards alike.
        3. Between one that fitted and one that did not: the middle.
        """
        start = min(max(self.guess, self.least), self.most)
        if not self.tried:
            return start
        fits, fails = self.largest, self.refused
        if fails is None:
            fits = fits or self.least - 1
            return None if fits >= self.most else min(self.most, fits + max(1, 2 * (fits - start)))
        if fits is None:
            return None if fails <= self.least else max(self.least, fails - max(1, 2 * (start - fails)))
        return None if fails - fits <= 1 else (fits + fails) // 2

    @property
    def done(self) -> bool:
        return self.following is None


TRIAL_STEPS = 3


def trial(spec: RunSpec, layers: int, cap: int | None) -> RunSpec:
    """The run that shows whether `layers` layers fit: three steps, the second under the memory meter (later where a
    pipeline without flushes fills more slowly, see observe.observed_steps), with `cap` bytes a rank (None: the device's
    own memory), and without faults of later steps.

    Raises pydantic's ValidationError where the spec is invalid.
    """
    short = {"steps": TRIAL_STEPS, "warmup_steps": 2, "lr_warmup_steps": 0, "checkpoint_every": 0}
    # Weights that it would begin from are of one number of layers, and their values take no other memory.
    train = spec.train.model_copy(update={**short, "weights": ""})
    data = spec.model_copy(update={"train": train}).model_dump()
    data["model"]["layers"] = layers
    data["parallel"]["cuts"] = None
    # A fault of a later step would be refused, and takes no memory here.
    data["inject"] = [fault for fault in data["inject"] if fault.get("step", 0) < TRIAL_STEPS]
    # Replicas are compared only after the last step: that is never, and a flipped bit is refused beside 0.
    data["trace"] |= {"memory": True, "memory_cap": cap, "fingerprint_every": TRIAL_STEPS + 1, "profile_steps": ()}
    return RunSpec.model_validate(data)


def search_for(spec: RunSpec, limit: int) -> Search:
    """A new search for the most layers of the spec's own kind within `limit` bytes a rank."""
    return Search(largest_layers(spec, int(limit * (1 - MARGIN))), least=least_layers(spec))
