"""The base of faults: a value in the spec that states what is broken, on which rank, and by how much.

A fault is pure data. It changes the spec that is trained (`breaks`), or overrides some of the methods that the engine
calls during training, whose defaults have no effect. Only `engine.injected` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from parallel_core.rules import MAX_VALUES_NAMED, Proposal, Refusal, nearest, refusal
from parallel_core.rules.stages import ranks_text

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

MAX_DELAY_MS = 10_000
Rank = Annotated[int, Field(ge=0, le=16_383)]
Milliseconds = Annotated[float, Field(gt=0, le=MAX_DELAY_MS)]


class Fault(BaseModel):
    """One thing broken on purpose. `kind` identifies the fault; a run has each kind at most once."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: str
    title: ClassVar[str]
    """Display name, in a word or two."""
    blurb: ClassVar[str]
    """Description of its effect, for a form."""
    hints: ClassVar[dict[str, str]] = {}
    """Field -> description in a few words."""
    slows: ClassVar[bool] = True
    """Whether steps take longer by it."""

    @property
    def sentence(self) -> str:
        """Description of this fault with its numbers; without a full stop."""
        raise NotImplementedError

    @property
    def spelt(self) -> str:
        """The fault in the syntax of the command line: `straggler:rank=1,factor=2`."""
        values = ",".join(f"{name}={plain(getattr(self, name))}" for name in type(self).fields())
        return f"{self.kind}:{values}" if values else self.kind

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Returns the names of the fields that can be set."""
        return tuple(name for name in cls.model_fields if name != "kind")

    def check(self, spec: RunSpec) -> None:
        """Raises the error of a rule where the fault does not fit this run."""

    def never_after(self, step: int) -> dict[str, str]:
        """Why the fault has no effect in a run that begins from a checkpoint of `step` steps, by dotted field; {} if it
        has one."""
        return {}

    def breaks(self, spec: RunSpec) -> RunSpec:
        """Returns the spec that is trained in place of `spec`."""
        return spec

    def slowdown(self, rank: int) -> float:
        """Returns the factor by which compute operations of `rank` take longer."""
        return 1.0

    def launches(self, rank: int) -> int:
        """Returns how many tiny kernels `rank` launches after every compute operation."""
        return 0

    def link_delay(self, rank: int, peer: int) -> float:
        """Returns the seconds by which each message between the two global ranks occupies its link longer."""
        return 0.0

    def collective_delay(self, axis: str) -> float:
        """Returns the seconds by which each collective over `axis` ("data" or "tensor") takes longer."""
        return 0.0

    def read_delay(self, rank: int) -> float:
        """Returns the seconds by which `rank` takes longer to read its part of a batch."""
        return 0.0

    def held_bytes(self, rank: int) -> int:
        """Returns the bytes that `rank` wastes."""
        return 0

    def lr_factor(self, step: int) -> float:
        """Returns the factor on the learning rate of `step`."""
        return 1.0

    def flips(self, rank: int, step: int) -> bool:
        """Whether a bit of a parameter on `rank` flips after `step`."""
        return False

    def need_rank(self, spec: RunSpec, rank: int, name: str = "rank") -> None:
        """Raises the error of a rule where the run has no such rank."""
        world = spec.parallel.world
        if rank >= world:
            problem = f"{name}={rank} is no rank: {ranks_text(spec.parallel)} has {world}; use"
            degrees = ("parallel.dp", "parallel.tp", "parallel.pp")
            raise self.wrong(name, problem, self.proposal(name, range(world), rank), others=degrees)

    def need_step(self, spec: RunSpec, step: int) -> None:
        """Raises the error of a rule where the run has no such step."""
        steps = spec.train.steps
        if step >= steps:
            earlier = Proposal("step={} or less", self.at("step"), [steps - 1])
            longer = Proposal("steps={} or more", "train.steps", [step + 1])
            problem = f"step={step} comes after the last of steps={steps}, which is {steps - 1}; use"
            raise self.wrong("step", problem, earlier, longer, others=("train.steps",))

    def need_cpu(self, spec: RunSpec, what: str) -> None:
        """Raises the error of a rule where the run is not on CPU devices, on which alone `what` are made late."""
        device = spec.train.device
        if device != "cpu":
            problem = f"{self.kind} makes {what} late, which only CPU devices do, and device={device} is none; use"
            raise self.wrong("", problem, Proposal("device={}", "train.device", ["cpu"]), others=("train.device",))

    def at(self, name: str = "") -> str:
        """Returns the dotted name of this fault's field `name`, or of the fault."""
        return f"inject.{self.kind}.{name}" if name else f"inject.{self.kind}"

    def proposal(self, name: str, values: Iterable[int], around: int) -> Proposal:
        """Returns the proposal to give this fault's field `name` one of the `values` nearest to `around`."""
        return Proposal(f"{name}={{}}", self.at(name), nearest(values, around)[:MAX_VALUES_NAMED], MAX_VALUES_NAMED)

    def left_out(self, spare: bool) -> Proposal:
        """Returns the proposal of a run without this fault."""
        return Proposal("leave this fault out", self.at(), [None], spare=spare)

    def wrong(self, name: str, problem: str, *proposals: Proposal, others: tuple[str, ...] = ()) -> Refusal:
        """Returns the error of a rule (see `rules.refusal`), shown at this fault's field `name` ('' = at the fault);
        `others`: further dotted fields."""
        return refusal((self.at(name), *others), problem, *proposals)


class RankFault(Fault):
    """A fault of one rank, which the run must have."""

    rank: Rank = 0

    def check(self, spec: RunSpec) -> None:
        self.need_rank(spec, self.rank)


def plain(value: Any) -> str:
    """Formats a value with all its digits, so that parsing it gives the same value."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
