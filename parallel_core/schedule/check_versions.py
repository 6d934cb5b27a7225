"""Validates the weight versions of a schedule without a flush (`passes.versions` defines them)."""

from __future__ import annotations

from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule


def check_versions(schedule: Schedule) -> None:
    """Raises ScheduleError unless, on every rank (which holds one stage):

    1. an operation uses an existing version: the current one, or one that is stashed and not yet dropped; without a
       stash the current one;
    2. with a stash, backward uses the version of its forward; under `vertical`, also that of all other stages;
    3. OPT_STEP makes the version that it names: it holds the gradients of exactly the micro-batches below it, reduced
       over the replicas right before;
    4. in the end every gradient is applied, and nothing is stashed; `2bw` never keeps more than one version besides the
       newest.

    A schedule with a flush has no versions.
    """
    if schedule.sync == "flush":
        return
    for rank in range(schedule.pipeline_ranks):
        _Rank(schedule, rank).walk()
    if schedule.vertical:
        _same_everywhere(schedule)


class _Rank:
    """The weight versions of one rank as its program proceeds."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.present, self.kept = 0, set[int]()
        self.read: dict[int, int] = {}
        self.gradients: list[int] = []
        self.summed = 0
        """Version whose gradients the replicas have reduced."""

    def walk(self) -> None:
        program = self.schedule.programs[self.rank]
        for i, op in enumerate(program):
            wrong = self._wrong(op)
            if wrong:
                raise ScheduleError(f"{op} {wrong}.", self.schedule, self.rank, i)
        for left in sorted(self.kept):
            self._raise(f"weight version {left} is never dropped.")
        if self.present != self.schedule.micro_batches:
            self._raise(f"the gradients of micro-batches from {self.present} on are never applied.")

    def _raise(self, message: str) -> None:
        raise ScheduleError(message, self.schedule, self.rank, len(self.schedule.programs[self.rank]))

    def _wrong(self, op: Op) -> str:
        """What is wrong with the next operation; '' if it is right, and then it is applied."""
        if op.kind in COMPUTE:
            return self._compute(op)
        if op.kind is Kind.STASH:
            wrong = op.version != self.present
            self.kept.add(op.version)
            if self.schedule.sync == "2bw" and len(self.kept) > 1:
                return f"keeps versions {sorted(self.kept)}; 2bw has two at most, the newest and one more"
            return f"stashes version {op.version}, the present one is {self.present}" if wrong else ""
        if op.kind is Kind.DROP:
            wrong = op.version not in self.kept
            self.kept.discard(op.version)
            return f"drops version {op.version}, which is not stashed" if wrong else ""
        if op.kind is Kind.ALLREDUCE:
            self.summed = op.version
        return self._step(op) if op.kind is Kind.OPT_STEP else ""

    def _compute(self, op: Op) -> str:
        there = {self.present} if self.schedule.sync == "none" else {self.present, *self.kept}
        if op.version not in there:
            return f"uses weight version {op.version}; its stage has {', '.join(map(str, sorted(there)))}"
        read = self.read.setdefault(op.micro_batch, op.version)
        if self.schedule.sync != "none" and read != op.version:
            return f"uses weight version {op.version}, its forward {read}"
        if op.kind in (Kind.BW, Kind.W):
            self.gradients.append(op.micro_batch)
        return ""

    def _step(self, op: Op) -> str:
        replicas = len(self.schedule.placement[op.stage])
        made = range(self.present, op.version)
        wanted = [i for i in made if self.schedule.home(op.stage, i) == op.replica]
        if op.version <= self.present or sorted(self.gradients) != wanted:
            return f"makes version {op.version} of {self.present} and the gradients of {sorted(self.gradients)}"
        if replicas > 1 and self.summed != op.version:
            return "updates before the replicas have summed their gradients"
        self.present, self.gradients = op.version, []
        return ""


def _same_everywhere(schedule: Schedule) -> None:
    used: dict[int, int] = {}
    for rank, program in enumerate(schedule.programs):
        for i, op in enumerate(program):
            if op.kind in COMPUTE and used.setdefault(op.micro_batch, op.version) != op.version:
                text = f"{op} uses weight version {op.version}, another stage {used[op.micro_batch]}."
                raise ScheduleError(text, schedule, rank, i)
