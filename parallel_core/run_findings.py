"""Applies the rules of `analysis.diagnosis` to the records of a finished run, without a dashboard."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from parallel_core.analysis.diagnosis import RULES, Case, checked, diagnose, unjudged
from parallel_core.analysis.diagnosis.case import Step
from parallel_core.analysis.diagnosis.run_case import SERIES, case_from
from parallel_core.observe.observed_steps import first_timed
from parallel_core.observe.record_files import Frame
from parallel_core.observe.records import POINT, SPAN
from parallel_core.outcome import Outcome, RankRecords, series_in
from parallel_core.spec import RunSpec


def case_of(spec: RunSpec, outcome: Outcome) -> Case:
    """The run as rules see it."""
    ranks = [_RankFacts(records) for records in outcome.frames.values()]
    others = max((share for facts in ranks for share in facts.others), default=None)
    return case_from(spec, _RunFacts(spec, ranks), limit=spec.trace.memory_cap, others=others)


def sentences(case: Case) -> list[str]:
    """One sentence for each finding, most urgent first; one sentence if there is none."""
    found = [f"{finding.title} {finding.change}" for finding in diagnose(case)]
    why = unjudged(case)
    said = f"checked {checked(case)} of {len(RULES)} rules" + (f": {why}" if why else "")
    return found or [f"Nothing wrong found; {said}."]


class _RankFacts:
    """What rules need of the records of one rank. One pass gathers it and holds one record at a time: a long run has
    more of them than memory holds. The spans of a step are read when they are asked for."""

    def __init__(self, records: RankRecords) -> None:
        self.peak: int | None = None
        """Of the newest metered step, in bytes."""
        self.device: int | None = None
        """Its number, as in `hello`."""
        self.phases: dict[str, int] = {}
        """Phase -> step at which it began."""
        self.kept: list[int] = []
        """The checkpoints that the newest one left."""
        self.others: list[float] = []
        self._records = records
        self._curves = {name: bytearray() for name in SERIES}
        traced = array("q")
        for frame in records:
            if frame.kind == "spans":
                traced.extend((int(frame.header["step"]), int(frame.header["total"]), frame.end - frame.size))
            else:
                self._take(frame)
        self._traced = np.frombuffer(traced, np.int64).reshape(-1, 3)
        """A row for each `spans` record: step, total, and offset in the stream at which it begins."""

    def _take(self, frame: Frame) -> None:
        header = frame.header
        match frame.kind:
            case "points":
                for name, rows in series_in(frame):
                    if name in self._curves:
                        self._curves[name] += rows
            case "memory":
                self.peak = int(header["peak_total"])
            case "hello":
                self.device = header.get("number")
            case "phase":
                self.phases[header["phase"]] = int(header["step"])
            case "checkpoint":
                self.kept = header["kept"]
            case "summary" if header.get("cpu_others") is not None:
                self.others.append(header["cpu_others"])

    def curve(self, name: str) -> np.ndarray:
        """The POINT rows of a series of SERIES."""
        return np.frombuffer(self._curves[name], POINT)

    @property
    def steps(self) -> np.ndarray:
        """The traced steps, int64, as often as there are records of one."""
        return self._traced[:, 0]

    def spans(self, step: int) -> tuple[np.ndarray, int] | None:
        """(SPAN rows of a traced step, how many spans the rank recorded), as in the newest record; None without one."""
        found = self._traced[self.steps == step]
        if not len(found):
            return None
        _, total, start = found[-1].tolist()
        return np.frombuffer(self._records.at(start).blob, SPAN), total


class _RunFacts:
    """The records that the ranks of a run wrote, as `run_case.RunRecords`."""

    def __init__(self, spec: RunSpec, ranks: Sequence[_RankFacts]) -> None:
        self._spec, self._ranks = spec, ranks

    def curve(self, name: str, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
        found = self._ranks[rank].curve(name)
        return found["step"], found["value"]

    def peaks(self) -> Mapping[int, int]:
        return {rank: facts.peak for rank, facts in enumerate(self._ranks) if facts.peak is not None}

    def devices(self) -> Mapping[int, int | None]:
        return {rank: facts.device for rank, facts in enumerate(self._ranks)}

    def first_timed(self) -> int:
        """As rank 0 recorded it; after a resume there is another warm-up."""
        begun = self._ranks[0].phases
        return begun.get("timed", first_timed(self._spec, begun.get("warmup", 0)))

    def checkpoints(self) -> frozenset[int]:
        """Those that the newest one left; rank 0 records them."""
        return frozenset(self._ranks[0].kept)

    def rate_before(self) -> None:
        """A checkpoint's folder does not have it."""

    def traced_steps(self) -> Sequence[int]:
        found: list[int] = np.unique(np.concatenate([facts.steps for facts in self._ranks])).tolist()
        return found

    def spans(self, step: int) -> tuple[Step, int]:
        found = {rank: own for rank, facts in enumerate(self._ranks) if (own := facts.spans(step)) is not None}
        return {rank: rows for rank, (rows, _) in found.items()}, sum(total for _, total in found.values())
