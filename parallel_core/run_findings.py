"""Applies the rules of `analysis.diagnosis` to the records of a finished run, without a dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from parallel_core.analysis.diagnosis import RULES, Case, checked, diagnose
from parallel_core.analysis.diagnosis.case import paces
from parallel_core.faults import trained
from parallel_core.local import Outcome, points
from parallel_core.observe.observed_steps import first_timed
from parallel_core.observe.records import SPAN, Frame
from parallel_core.spec import RunSpec

STEPS = 5
"""How many traced steps are judged, the newest."""


def case_of(spec: RunSpec, outcome: Outcome) -> Case:
    """The run as rules see it: its spec with faults applied, its traced steps, curves and peaks."""
    frames, first = outcome.frames, outcome.frames.get(0, [])
    loss = points(first, "loss")
    memory = {rank: [f for f in own if f.kind == "memory"][-1:] for rank, own in frames.items()}
    others = [f.header.get("cpu_others") for own in frames.values() for f in own if f.kind == "summary"]
    return Case(
        trained(spec),
        _traced(spec, frames),
        loss_steps=loss["step"].astype(np.int64),
        loss=loss["value"],
        grad_norm=points(first, "grad_norm")["value"],
        loss_scale=points(first, "loss_scale")["value"],
        skipped=points(first, "skipped_steps")["value"],
        peaks={rank: int(found[0].header["peak_total"]) for rank, found in memory.items() if found},
        limit=spec.trace.memory_cap,
        others=max((share for share in others if share is not None), default=None),
        lr=points(first, "lr")["value"],
        paces=paces({rank: points(own, "reference_time")["value"] for rank, own in frames.items()}),
    )


def sentences(case: Case) -> list[str]:
    """One sentence for each finding, most urgent first; one sentence if there is none."""
    found = [f"{finding.title} {finding.change}" for finding in diagnose(case)]
    return found or [f"Nothing wrong found; checked {checked(case)} of {len(RULES)} rules."]


def _traced(spec: RunSpec, frames: Mapping[int, Sequence[Frame]]) -> list[dict[int, np.ndarray]]:
    """The newest STEPS timed steps that every rank traced completely: spans by rank, oldest step first."""
    timed_from = _timed_from(spec, frames.get(0, ()))
    by_step: dict[int, dict[int, np.ndarray]] = {}
    for rank, own in frames.items():
        for frame in own:
            head = frame.header
            if frame.kind == "spans" and head["count"] == head["total"] and head["step"] >= timed_from:
                by_step.setdefault(head["step"], {})[rank] = np.frombuffer(frame.blob, SPAN)
    whole = [step for step, ranks in sorted(by_step.items()) if len(ranks) == spec.parallel.world]
    return [by_step[step] for step in whole[-STEPS:]]


def _timed_from(spec: RunSpec, frames: Sequence[Frame]) -> int:
    """The first timed step according to a rank's records; after a resume there is another warm-up."""
    begun = {frame.header["phase"]: int(frame.header["step"]) for frame in frames if frame.kind == "phase"}
    return begun.get("timed", first_timed(spec, begun.get("warmup", 0)))
