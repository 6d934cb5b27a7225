"""What the variants of a study differ in, each as one value from form and starter to `variants` and the settings.

Its texts are as a person writes them (`written`, `sweepable`). The names of its fields are those of the forms: by them
the settings of a study fill in a form that makes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RECOMPUTE = ("none", "full")
USUAL_MICRO_BATCHES = 4


@dataclass(frozen=True)
class Axes:
    """The axes of a matrix, over `devices` devices: every combination of theirs is a variant."""

    strategies: Sequence[str]
    """Keys of `strategies.BY_KEY`."""
    splits: Sequence[str] = ()
    """Stages of the pipelines among them, beside even ones: `2-1`, `2x1-1x2`."""
    schedules: Sequence[Sequence[str]] = ()
    """Own schedules beside the strategies: (name, program)."""
    recompute: Sequence[str] = RECOMPUTE
    """Recomputation of all layers: `none`, `selective`, `full`."""
    layers: Sequence[str] = ()
    """Recomputation of some layers, beside those: `0, 2`, `selective 1`."""
    precisions: Sequence[str] = ("fp32",)
    micro_batches: Sequence[int] = (USUAL_MICRO_BATCHES,)
    """Of pipelines: other strategies have none to choose."""
    devices: int = 2

    def asked(self) -> dict[str, Any]:
        """As the settings of a study keep them, in JSON."""
        return {
            "strategies": list(self.strategies),
            "splits": list(self.splits),
            "schedules": [list(each) for each in self.schedules],
            "recompute": list(self.recompute),
            "layers": list(self.layers),
            "precisions": list(self.precisions),
            "micro_batches": list(self.micro_batches),
            "devices": self.devices,
        }


@dataclass(frozen=True)
class Swept:
    """The field of a sweep (dotted name) with its values; with a second field every pair of their values is a run."""

    field: str
    values: Sequence[str]
    second_field: str = ""
    second_values: Sequence[str] = ()

    @property
    def fields(self) -> list[tuple[str, Sequence[str]]]:
        """Each field with its values."""
        first, second = (self.field, self.values), (self.second_field, self.second_values)
        return [first, second] if self.second_field else [first]

    def asked(self) -> dict[str, Any]:
        """As the settings of a study keep it, in JSON: of one field nothing of a second."""
        asked: dict[str, Any] = {"field": self.field, "values": list(self.values)}
        if self.second_field:
            asked |= {"second_field": self.second_field, "second_values": list(self.second_values)}
        return asked
