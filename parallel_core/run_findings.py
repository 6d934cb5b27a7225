"""Applies the rules of `analysis.diagnosis` to the records of a finished run, without a dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from parallel_core.analysis.diagnosis import RULES, Case, checked, diagnose, unjudged
from parallel_core.analysis.diagnosis.case import Step
from parallel_core.analysis.diagnosis.run_case import case_from
from parallel_core.local import Outcome, points
from parallel_core.observe.observed_steps import first_timed
from parallel_core.observe.records import SPAN, Frame
from parallel_core.spec import RunSpec


def case_of(spec: RunSpec, outcome: Outcome) -> Case:
    """The run as rules see it."""
    headers = [frame.header for own in outcome.frames.values() for frame in own if frame.kind == "summary"]
    others = [header["cpu_others"] for header in headers if header.get("cpu_others") is not None]
    records = _FrameRecords(spec, outcome.frames)
    return case_from(spec, records, limit=spec.trace.memory_cap, others=max(others, default=None))


def sentences(case: Case) -> list[str]:
    """One sentence for each finding, most urgent first; one sentence if there is none."""
    found = [f"{finding.title} {finding.change}" for finding in diagnose(case)]
    why = unjudged(case)
    said = f"checked {checked(case)} of {len(RULES)} rules" + (f": {why}" if why else "")
    return found or [f"Nothing wrong found; {said}."]


class _FrameRecords:
    """The records that the ranks of a run wrote: frames by rank."""

    def __init__(self, spec: RunSpec, frames: Mapping[int, Sequence[Frame]]) -> None:
        self._spec, self._frames = spec, frames

    def curve(self, name: str, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
        found = points(self._frames.get(rank, ()), name)
        return found["step"], found["value"]

    def peaks(self) -> Mapping[int, int]:
        found = {rank: [f for f in own if f.kind == "memory"][-1:] for rank, own in self._frames.items()}
        return {rank: int(newest[0].header["peak_total"]) for rank, newest in found.items() if newest}

    def first_timed(self) -> int:
        """As rank 0 recorded it; after a resume there is another warm-up."""
        own = [frame.header for frame in self._frames.get(0, ()) if frame.kind == "phase"]
        begun = {header["phase"]: int(header["step"]) for header in own}
        return begun.get("timed", first_timed(self._spec, begun.get("warmup", 0)))

    def checkpoints(self) -> frozenset[int]:
        """Those that the newest one left; rank 0 records them."""
        kept = [frame.header["kept"] for frame in self._frames.get(0, ()) if frame.kind == "checkpoint"]
        return frozenset(kept[-1] if kept else ())

    def traced_steps(self) -> Sequence[int]:
        return sorted(self._traced)

    def spans(self, step: int) -> tuple[Step, int]:
        found = self._traced[step]
        rows = {rank: np.frombuffer(frame.blob, SPAN) for rank, frame in found.items()}
        return rows, sum(int(frame.header["total"]) for frame in found.values())

    @cached_property
    def _traced(self) -> dict[int, dict[int, Frame]]:
        by_step: dict[int, dict[int, Frame]] = {}
        for rank, own in self._frames.items():
            for frame in own:
                if frame.kind == "spans":
                    by_step.setdefault(int(frame.header["step"]), {})[rank] = frame
        return by_step
