"""What a fault is: a value of the spec that says what it breaks, on which rank, and by how much.

A fault is pure data. It changes the spec that is trained (`breaks`), or answers the questions that the engine asks
while it trains; a question it does not answer changes nothing. The engine acts in `engine.injected` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from parallel_core.rules import few, rule_error

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

MAX_DELAY_MS = 10_000
Rank = Annotated[int, Field(ge=0, le=16_383)]
Milliseconds = Annotated[float, Field(gt=0, le=MAX_DELAY_MS)]


class Fault(BaseModel):
    """One thing broken on purpose. `kind` tells the faults apart; a run has each kind once at most."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: str
    title: ClassVar[str]
    """What it is called, in a word or two."""
    blurb: ClassVar[str]
    """What it does, for a form."""
    hints: ClassVar[dict[str, str]] = {}
    """A few words for each of its fields."""

    @property
    def sentence(self) -> str:
        """What is broken here, with its numbers; without a full stop."""
        raise NotImplementedError

    @property
    def spelt(self) -> str:
        """As the command line takes it: `straggler:rank=1,factor=2`."""
        values = ",".join(f"{name}={plain(getattr(self, name))}" for name in type(self).fields())
        return f"{self.kind}:{values}" if values else self.kind

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Names of what can be set."""
        return tuple(name for name in cls.model_fields if name != "kind")

    def check(self, spec: RunSpec) -> None:
        """Raises a rule's error where this run cannot be broken so."""

    def breaks(self, spec: RunSpec) -> RunSpec:
        """The spec that is trained in place of `spec`."""
        return spec

    def slowdown(self, rank: int) -> float:
        """How many times as long `rank` computes."""
        return 1.0

    def launches(self, rank: int) -> int:
        """Tiny kernels that `rank` launches behind every compute operation."""
        return 0

    def link_delay(self, rank: int, peer: int) -> float:
        """Seconds by which each message between two pipeline ranks holds its link longer."""
        return 0.0

    def collective_delay(self, axis: str) -> float:
        """Seconds that each collective over `axis` ("data" or "tensor") takes longer."""
        return 0.0

    def read_delay(self, rank: int) -> float:
        """Seconds that `rank` takes longer to read its part of a batch."""
        return 0.0

    def held_bytes(self, rank: int) -> int:
        """Bytes that `rank` holds for nothing."""
        return 0

    def lr_factor(self, step: int) -> float:
        """By how much the learning rate of `step` is multiplied."""
        return 1.0

    def flips(self, rank: int, step: int) -> bool:
        """Whether a bit of a parameter on `rank` flips behind `step`."""
        return False

    def need_rank(self, spec: RunSpec, rank: int, name: str = "rank") -> None:
        """Raises where the run has no such rank."""
        world = spec.parallel.world
        if rank >= world:
            raise self.wrong(name, f"there is no rank {rank} among {world}; try {few(range(world), rank)}.")

    def wrong(self, name: str, message: str, *others: str) -> Any:
        """The error of a rule: shown at this fault's field `name` ('' = at the fault); `others` are dotted fields."""
        at = f"inject.{self.kind}.{name}" if name else f"inject.{self.kind}"
        return rule_error((at, *others), message)


def plain(value: Any) -> str:
    """A value with every digit, so that what is spelt is what was meant."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
