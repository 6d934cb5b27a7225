"""A bit of one parameter on one rank flips, as with faulty memory or a corrupted message: replicas then differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core import limits
from parallel_core.faults.base import Fault, Rank
from parallel_core.rules import Proposal, divisors
from parallel_core.rules.stages import dashed_text

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class FlippedBit(Fault):
    kind: Literal["flipped_bit"] = "flipped_bit"
    rank: Rank = 1
    step: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 5
    title: ClassVar[str] = "Flipped bit"
    blurb: ClassVar[str] = "one bit of a parameter changes; the comparison of replicas finds it"
    slows: ClassVar[bool] = False
    hints: ClassVar[dict[str, str]] = {"rank": "whose parameter", "step": "after this one"}

    @property
    def sentence(self) -> str:
        return f"one bit of a parameter on rank {self.rank} flips after step {self.step}"

    def check(self, spec: RunSpec) -> None:
        if max(spec.parallel.copies) == 1:
            problem = f"dp=1 has no replica from which {self.kind} would make a rank differ; use"
            degrees = divisors(spec.train.global_batch)[1:5]
            proposals = [Proposal("dp={}", "parallel.dp", degrees)] if degrees else []
            raise self.wrong("", problem, *proposals, self.left_out(spare=bool(proposals)), others=("parallel.dp",))
        self.need_rank(spec, self.rank)
        if self.rank not in (able := self._with_replica(spec)):
            replicas = f"with replicas={dashed_text(spec.parallel.copies)}"
            problem = f"{replicas}, rank={self.rank} has no replica that it would differ from; use"
            raise self.wrong("rank", problem, self.proposal("rank", able, self.rank), others=("parallel.replicas",))
        if spec.parallel.zero > 2:
            problem = f"zero=3 leaves no second copy from which {self.kind} would make a rank differ; use"
            fewer = Proposal("zero={} or less", "parallel.zero", [2])
            if spec.parallel.zero_backend != "own":
                own = [("parallel.zero_backend", "own")]
                fewer = Proposal("zero={} with zero_backend=own", "parallel.zero", [2], also=own)
            raise self.wrong("", problem, fewer, others=("parallel.zero",))
        if not spec.trace.fingerprint_every:
            problem = f"fingerprint_every=0 compares no replicas, so that nothing would find {self.kind}; use"
            usual = Proposal("fingerprint_every={}", "trace.fingerprint_every", [type(spec.trace)().fingerprint_every])
            raise self.wrong("", problem, usual, others=("trace.fingerprint_every",))
        self.need_step(spec, self.step)

    @staticmethod
    def _with_replica(spec: RunSpec) -> list[int]:
        """Returns the ranks whose pipeline place has several replicas."""
        from parallel_core.layout import Layout  # `layout` imports `spec`, which imports this module

        layout = Layout.of(spec)
        return [rank for rank in range(layout.world) if layout.replicas[layout.coords(rank).place] > 1]

    def never_after(self, step: int) -> dict[str, str]:
        if self.step >= step:
            return {}
        why = f"The checkpoint has {step} steps done, so step={self.step} never comes; use step={step} or more."
        return {self.at("step"): why}

    def flips(self, rank: int, step: int) -> bool:
        return rank == self.rank and step == self.step
