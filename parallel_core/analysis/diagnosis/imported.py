"""Diagnosis of a trace of a job that was not launched here: the rules that need only its spans.

Other data of a run (model, split, memory, loss) is not in a trace. Possible findings: a straggler among ranks that do
the same work, data loading, operations too small, and exposed collectives. Ranks that send to each other are stages of
a pipeline, whose work may differ: among them no straggler is looked for, but, if the schedule could be recovered, too
few micro-batches and uneven stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from parallel_core.analysis.breakdown import Account, accounts
from parallel_core.analysis.diagnosis import data_stall, imported_pipeline, straggler, tiny_kernels
from parallel_core.analysis.diagnosis.case import Case, Finding, Step
from parallel_core.analysis.diagnosis.exposed_reduction import MOST
from parallel_core.analysis.gaps import gaps
from parallel_core.analysis.meetings import last_to_come
from parallel_core.analysis.quantities import count_text, ns_text, percent_text, plural_text
from parallel_core.layout import Layout
from parallel_core.simulate.recovered import is_pipeline
from parallel_core.simulate.recovered_replay import Recovered
from parallel_core.spec import RunSpec


@dataclass(frozen=True)
class _Imported(Case):
    """Steps of n ranks by position 0 .. n - 1, which count as replicas of each other; its spec is a placeholder."""

    known: Sequence[Mapping[int, Account]] | None = None
    """Accounts of the steps, if they were taken before."""
    ranks: Sequence[int] = ()
    """The rank at each position."""
    world: int = 0
    """Number of the job's ranks; 0 if not known."""

    @property
    def missing(self) -> int:
        """Number of ranks without a trace of these steps."""
        return max(0, self.world - len(self.ranks))

    def called(self, rank: int) -> int:
        return self.ranks[rank]

    @cached_property
    def accounts(self) -> list[dict[int, Account]]:
        if self.known is None:
            return [accounts(step, self.layout, last_to_come(step, None)) for step in self.traced]
        return [dict(own) for own in self.known]

    @cached_property
    def layout(self) -> Layout:
        world = len(self.traced[0])
        return Layout.unknown(world)

    @cached_property
    def recovered(self) -> Recovered | None:
        return imported_pipeline.recovered(self.traced)

    @property
    def pipeline(self) -> bool:
        """Whether the ranks are stages of a pipeline."""
        return is_pipeline(self.traced[0])


def _few(case: _Imported) -> Finding | None:
    return imported_pipeline.few(case.recovered) if case.recovered else None


def _uneven(case: _Imported) -> Finding | None:
    found = imported_pipeline.uneven(case.recovered) if case.recovered else None
    return replace(found, rank=case.called(found.rank)) if found and found.rank is not None else found


def _exposed(case: _Imported) -> Finding | None:
    """Threshold of `exposed_reduction`, for collectives of any kind, on the rank where they are hidden best: on the
    others they may include waiting for it, as on all of them if a rank has no trace."""
    alone = case.of_rank(lambda rank, account: account.parts.exposed_collective)
    took = round(min(alone.values())) if len(alone) > 1 else 0
    if not case.step_ns or took < MOST * case.step_ns:
        return None
    return Finding(
        "exposed_collectives",
        f"{percent_text(took / case.step_ns)} of the step is collectives that computing does not hide.",
        f"{ns_text(took)} of {ns_text(case.step_ns)}, on the rank that has least of it{_late(case)}.",
        _WHOLE * (case.missing > 0)
        + "Give each rank a larger batch, start the sums of gradients during the backward, or use a faster link.",
        effect_ns=took,
    )


_WHOLE = (
    "First upload the traces of all ranks of the same steps: if one that lacks them is late, the others wait for it. "
)


def _late(case: _Imported) -> str:
    few = plural_text(case.missing, "rank")
    return f"; it may include waiting for {few} without a trace of it" if case.missing else ""


def _small(case: _Imported) -> Finding | None:
    """Threshold of `tiny_kernels`, but only for the short pauses between operations. A span here is one or a few
    neighbouring operations or kernels, not a whole forward, so its length says nothing."""
    found = [gaps(rows) for step in case.traced for rows in step.values()]
    many, lost = (round(float(np.median([own[i] for own in found]))) for i in range(2))
    if not case.step_ns or not many or lost < tiny_kernels.BETWEEN * case.step_ns:
        return None
    return Finding(
        "tiny_kernels",
        f"{percent_text(lost / case.step_ns)} of the step is pauses between operations, {ns_text(lost / many)} each.",
        f"A rank pauses {count_text(many)} times a step: Python, autograd and the profiler's own records take "
        f"{ns_text(lost)} of {ns_text(case.step_ns)}.",
        "Use larger micro-batches, or fuse operations (torch.compile, CUDA graphs); a step without the profiler loses "
        "less.",
        effect_ns=lost,
    )


def _straggler(case: _Imported) -> Finding | None:
    return None if case.pipeline else straggler.check(case, least=1, whole=False)


_T = TypeVar("_T")


def _by_position(of: Mapping[int, _T], ranks: Sequence[int]) -> dict[int, _T]:
    return {position: of[rank] for position, rank in enumerate(ranks)}


RULES: dict[str, Callable[[_Imported], Finding | None]] = {
    "straggler": _straggler,
    "data_stall": data_stall.check,
    "tiny_kernels": _small,
    "exposed_collectives": _exposed,
    "few_micro_batches": _few,
    "unbalanced_stages": _uneven,
}


def diagnose(
    steps: Sequence[Step], known: Sequence[Mapping[int, Account]] | None = None, world: int = 0
) -> list[Finding]:
    """Findings of the steps that all traced ranks have, by the time they cost; raises ValueError if there is none.
    `known`: the accounts of the same steps with `Layout.unknown`; `world`: number of the job's ranks, traced or not (0:
    not known)."""
    ranks = max((sorted(step) for step in steps), key=len, default=[])
    whole = [i for i, step in enumerate(steps) if sorted(step) == ranks and all(map(len, step.values()))]
    if not ranks or not whole:
        raise ValueError("no step is in the traces of all ranks")
    taken = None if known is None else [_by_position(known[i], ranks) for i in whole]
    case = _Imported(RunSpec(), [_by_position(steps[i], ranks) for i in whole], known=taken, ranks=ranks, world=world)
    found = [finding for rule in RULES.values() if (finding := rule(case)) is not None]
    return sorted(found, key=lambda finding: -finding.effect_ns)
